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


def _divide(tf):
    config = tf.config
    listed, see = config.list_physical_devices, config.set_visible_devices
    details = config.experimental.get_device_details
    logical = {}

    def cards():
        made = type(listed("CPU")[0])
        count = len(listed("GPU")) // _parts()
        return [made(f"/physical_device:GPU:{number}", "GPU") for number in range(count)]

    def parts_of(card):
        number = int(card.name.rpartition(":")[2])
        return listed("GPU")[number * _parts() : (number + 1) * _parts()]

    def list_physical_devices(device_type=None):
        if _parts() == 1 or device_type not in (None, "GPU"):
            return listed(device_type)
        others = [one for one in listed() if one.device_type != "GPU"]
        return cards() if device_type == "GPU" else [*others, *cards()]

    def set_visible_devices(devices, device_type=None):
        if _parts() > 1 and device_type == "GPU":
            see([part for card in devices for part in parts_of(card)], "GPU")
        else:
            see(devices, device_type)

    def get_visible_devices(device_type=None):
        if _parts() > 1 and device_type == "GPU":
            return [card for card in cards() if parts_of(card)[0] in seen("GPU")]
        return seen(device_type)

    def set_logical_device_configuration(device, logical_devices):
        if _parts() == 1 or device.device_type != "GPU":
            return configure(device, logical_devices)
        wanted = [one.memory_limit for one in logical_devices]
        if len(wanted) > _parts():
            raise ValueError(f"{len(wanted)} logical devices, and HOSTGPU_PARTS={_parts()}")
        if None in wanted or sum(wanted) > int(os.environ.get("HOSTGPU_MEMORY_MB", "4096")):
            raise ValueError(f"{wanted} MiB are not the memory of a card")
        logical[device.name] = list(logical_devices)
        unused = parts_of(device)[len(wanted) :]
        see([part for part in seen("GPU") if part not in unused], "GPU")
        return None

    def get_logical_device_configuration(device):
        if _parts() == 1 or device.device_type != "GPU":
            return configured(device)
        return logical.get(device.name)

    def get_device_details(device):
        gpu = _parts() > 1 and device.device_type == "GPU"
        return details(parts_of(device)[0] if gpu else device)

    seen = config.get_visible_devices
    configure, configured = (
        config.set_logical_device_configuration,
        config.get_logical_device_configuration,
    )
    for function in (
        list_physical_devices,
        set_visible_devices,
        get_visible_devices,
        set_logical_device_configuration,
        get_logical_device_configuration,
    ):
        setattr(config, function.__name__, function)
    config.experimental.get_device_details = get_device_details
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
