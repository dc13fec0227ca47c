// A file system plug-in of TensorFlow for URLs store://NAME/PATH: the files are in the folder that
// the environment variable STORE names. Like an object store it makes folders on demand, and a
// file is there as a whole when it has been closed or synchronized. URLs with the text in
// STORE_REFUSES cannot be written, files with that in STORE_BREAKS not be read, and with STORE_DELAY
// questions take that many seconds.

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "tensorflow/c/experimental/filesystem/filesystem_interface.h"
#include "tensorflow/c/tf_file_statistics.h"
#include "tensorflow/c/tf_status.h"

namespace {

namespace fs = std::filesystem;
using Store = const TF_Filesystem*;

struct Written {
  fs::path path;
  std::string content;
};

fs::path Local(const char* url) {
  return fs::path(std::getenv("STORE")) / (url + std::strlen("store://"));
}

void Set(TF_Status* status, TF_Code code = TF_OK, const std::string& message = "") {
  TF_SetStatus(status, code, message.c_str());
}

bool Found(const char* url, TF_Status* status) {
  if (const char* seconds = std::getenv("STORE_DELAY")) ::sleep(std::atoi(seconds));
  const bool found = fs::exists(Local(url));
  Set(status, found ? TF_OK : TF_NOT_FOUND, found ? "" : std::string(url) + " not found");
  return found;
}

bool Names(const char* variable, const std::string& path) {
  const char* text = std::getenv(variable);
  return text != nullptr && path.find(text) != std::string::npos;
}

char* Copied(const std::string& text) { return strdup(text.c_str()); }

int64_t Read(const TF_RandomAccessFile* file, uint64_t offset, size_t n, char* buffer,
             TF_Status* status) {
  const auto& path = *static_cast<fs::path*>(file->plugin_file);
  if (Names("STORE_BREAKS", path.string())) {
    Set(status, TF_UNAVAILABLE, "the connection is lost");
    return -1;
  }
  std::ifstream stream(path, std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  stream.read(buffer, static_cast<std::streamsize>(n));
  const int64_t got = stream.gcount();
  Set(status, got < static_cast<int64_t>(n) ? TF_OUT_OF_RANGE : TF_OK, "end of file");
  return got;
}

void Save(const TF_WritableFile* file, TF_Status* status) {
  const auto* written = static_cast<Written*>(file->plugin_file);
  fs::create_directories(written->path.parent_path());
  std::ofstream(written->path, std::ios::binary) << written->content;
  Set(status);
}

void Begin(const char* url, const std::string& content, TF_WritableFile* file, TF_Status* status) {
  if (Names("STORE_REFUSES", url)) {
    return Set(status, TF_PERMISSION_DENIED, std::string(url) + " is not for you");
  }
  file->plugin_file = new Written{Local(url), content};
  Set(status);
}

void FillReading(TF_RandomAccessFileOps* ops) {
  ops->cleanup = [](TF_RandomAccessFile* file) { delete static_cast<fs::path*>(file->plugin_file); };
  ops->read = Read;
}

void FillWriting(TF_WritableFileOps* ops) {
  ops->cleanup = [](TF_WritableFile* file) { delete static_cast<Written*>(file->plugin_file); };
  ops->append = [](const TF_WritableFile* file, const char* buffer, size_t n, TF_Status* status) {
    static_cast<Written*>(file->plugin_file)->content.append(buffer, n);
    Set(status);
  };
  ops->tell = [](const TF_WritableFile* file, TF_Status* status) -> int64_t {
    Set(status);
    return static_cast<int64_t>(static_cast<Written*>(file->plugin_file)->content.size());
  };
  ops->flush = [](const TF_WritableFile*, TF_Status* status) { Set(status); };
  ops->sync = Save;
  ops->close = Save;
}

void FillStore(TF_FilesystemOps* ops) {
  ops->init = [](TF_Filesystem*, TF_Status* status) { Set(status); };
  ops->cleanup = [](TF_Filesystem*) {};
  ops->new_random_access_file = [](Store, const char* url, TF_RandomAccessFile* file,
                                   TF_Status* status) {
    if (Found(url, status)) file->plugin_file = new fs::path(Local(url));
  };
  ops->new_writable_file = [](Store, const char* url, TF_WritableFile* file, TF_Status* status) {
    Begin(url, "", file, status);
  };
  ops->new_appendable_file = [](Store, const char*, TF_WritableFile*, TF_Status* status) {
    Set(status, TF_UNIMPLEMENTED, "a store cannot append");
  };
  ops->create_dir = [](Store, const char* url, TF_Status* status) {
    fs::create_directories(Local(url));
    Set(status);
  };
  ops->recursively_create_dir = ops->create_dir;
  ops->delete_file = [](Store, const char* url, TF_Status* status) {
    if (Found(url, status)) fs::remove(Local(url));
  };
  ops->delete_dir = ops->delete_file;
  ops->rename_file = [](Store, const char* from, const char* to, TF_Status* status) {
    if (Found(from, status)) fs::rename(Local(from), Local(to));
  };
  ops->path_exists = [](Store, const char* url, TF_Status* status) { Found(url, status); };
  ops->stat = [](Store, const char* url, TF_FileStatistics* facts, TF_Status* status) {
    struct stat found;
    if (!Found(url, status) || ::stat(Local(url).c_str(), &found) != 0) return;
    facts->length = found.st_size;
    facts->mtime_nsec = found.st_mtim.tv_sec * 1000000000LL + found.st_mtim.tv_nsec;
    facts->is_directory = S_ISDIR(found.st_mode);
  };
  ops->is_directory = [](Store, const char* url, TF_Status* status) {
    const bool is_folder = fs::is_directory(Local(url));
    if (Found(url, status) && !is_folder) Set(status, TF_FAILED_PRECONDITION, "not a folder");
    return is_folder;
  };
  ops->get_file_size = [](Store, const char* url, TF_Status* status) -> int64_t {
    return Found(url, status) ? static_cast<int64_t>(fs::file_size(Local(url))) : -1;
  };
  ops->translate_name = [](Store, const char* url) { return Copied(url); };
  ops->get_children = [](Store, const char* url, char*** entries, TF_Status* status) {
    if (!Found(url, status)) return -1;
    int count = 0;
    *entries = static_cast<char**>(std::calloc(4096, sizeof(char*)));
    for (const auto& entry : fs::directory_iterator(Local(url))) {
      (*entries)[count++] = Copied(entry.path().filename().string());
    }
    return count;
  };
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void TF_InitPlugin(
    TF_FilesystemPluginInfo* info) {
  info->plugin_memory_allocate = [](size_t size) { return std::calloc(1, size); };
  info->plugin_memory_free = [](void* memory) { std::free(memory); };
  info->num_schemes = 1;
  info->ops =
      static_cast<TF_FilesystemPluginOps*>(std::calloc(1, sizeof(TF_FilesystemPluginOps)));
  TF_SetFilesystemVersionMetadata(info->ops);
  info->ops->scheme = Copied("store");
  info->ops->filesystem_ops =
      static_cast<TF_FilesystemOps*>(std::calloc(1, TF_FILESYSTEM_OPS_SIZE));
  FillStore(info->ops->filesystem_ops);
  info->ops->random_access_file_ops =
      static_cast<TF_RandomAccessFileOps*>(std::calloc(1, TF_RANDOM_ACCESS_FILE_OPS_SIZE));
  FillReading(info->ops->random_access_file_ops);
  info->ops->writable_file_ops =
      static_cast<TF_WritableFileOps*>(std::calloc(1, TF_WRITABLE_FILE_OPS_SIZE));
  FillWriting(info->ops->writable_file_ops);
}
