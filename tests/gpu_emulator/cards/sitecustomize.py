"""Emulated cards that can be divided: the variable HOSTGPU_PARTS has the number of their parts.

TensorFlow divides GPUs of CUDA into logical ones, and ignores the request for plugged-in devices.
So the emulator makes every part a device of its own, and `tf.config`, changed here when TensorFlow
is imported, lists them as the cards of which a request for logical devices makes them. A request
for another number of parts, or for more memory than a card has, is an error.
"""

import importlib.abc
import importlib.machinery
import os
import sys


def _parts():
    return int(os.environ.get("HOSTGPU_PARTS", "1"))


class _Cards:
    """The functions of `tf.config` that take or list GPUs, for cards."""

    def __init__(self, config):
        self._listed, self._see = config.list_physical_devices, config.set_visible_devices
        self._seen = config.get_visible_devices
        self._configure = config.set_logical_device_configuration
        self._configured = config.get_logical_device_configuration
        self._details = config.experimental.get_device_details
        self._logical = {}

    def list_physical_devices(self, device_type=None):
        if _parts() == 1 or device_type not in (None, "GPU"):
            return self._listed(device_type)
        made = type(self._listed("CPU")[0])
        count = len(self._listed("GPU")) // _parts()
        cards = [made(f"/physical_device:GPU:{number}", "GPU") for number in range(count)]
        others = [one for one in self._listed() if one.device_type != "GPU"]
        return cards if device_type == "GPU" else [*others, *cards]

    def set_visible_devices(self, devices, device_type=None):
        if _parts() > 1 and device_type == "GPU":
            devices = [part for card in devices for part in self._parts_of(card)]
        self._see(devices, device_type)

    def get_visible_devices(self, device_type=None):
        seen = self._seen(device_type)
        if _parts() == 1 or device_type != "GPU":
            return seen
        cards = self.list_physical_devices("GPU")
        return [card for card in cards if self._parts_of(card)[0] in seen]

    def set_logical_device_configuration(self, device, logical_devices):
        if _parts() == 1 or device.device_type != "GPU":
            return self._configure(device, logical_devices)
        wanted = [one.memory_limit for one in logical_devices]
        if len(wanted) > _parts():
            raise ValueError(f"{len(wanted)} logical devices, and HOSTGPU_PARTS={_parts()}")
        if None in wanted or sum(wanted) > int(os.environ.get("HOSTGPU_MEMORY_MB", "4096")):
            raise ValueError(f"{wanted} MiB are not the memory of a card")
        self._logical[device.name] = list(logical_devices)
        unused = self._parts_of(device)[len(wanted) :]
        self._see([part for part in self._seen("GPU") if part not in unused], "GPU")
        return None

    def get_logical_device_configuration(self, device):
        if _parts() == 1 or device.device_type != "GPU":
            return self._configured(device)
        return self._logical.get(device.name)

    def get_device_details(self, device):
        gpu = _parts() > 1 and device.device_type == "GPU"
        return self._details(self._parts_of(device)[0] if gpu else device)

    def _parts_of(self, card):
        number = int(card.name.rpartition(":")[2])
        return self._listed("GPU")[number * _parts() : (number + 1) * _parts()]


def _divide(tf):
    cards = _Cards(tf.config)
    for name in dir(cards):
        if not name.startswith("_"):
            owner = tf.config.experimental if name == "get_device_details" else tf.config
            setattr(owner, name, getattr(cards, name))
    _serve(tf)


def _serve(tf):
    """Divides the cards of a server, whose settings are not those of `tf.config`."""
    serve = tf.distribute.Server

    class Server(serve):
        def __init__(self, *arguments, config=None, **others):
            options = None if config is None else config.gpu_options
            if options is not None and options.experimental.virtual_devices:
                numbers = map(int, options.visible_device_list.split(","))
                made = [len(one.memory_limit_mb) for one in options.experimental.virtual_devices]
                if max(made) > _parts():
                    raise ValueError(f"{made} logical devices, and HOSTGPU_PARTS={_parts()}")
                cards = zip(numbers, made, strict=True)
                parts = (n * _parts() + part for n, count in cards for part in range(count))
                # The options that TensorFlow reads for plugged-in devices.
                config.pluggable_device_options.visible_device_list = ",".join(map(str, parts))
            super().__init__(*arguments, config=config, **others)

    tf.distribute.Server = Server


class _Loader(importlib.abc.Loader):
    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        _divide(module)

    def __getattr__(self, name):
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
