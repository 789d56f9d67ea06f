"""A DLPack producer made by hand, to offer what no library offers: missing strides, null data, other devices, flags."""

import ctypes

import numpy as np

READ_ONLY, COPIED = 1, 2
FLOAT, BFLOAT, INT = 2, 4, 0


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Producer:
    """Offers the memory of a NumPy array; every field of the capsule can be told otherwise."""

    def __init__(
        self, array, *, versioned=True, major=1, flags=0, strides="own", device=1, code=FLOAT, bits=None, **more
    ):
        self.array = array
        self.versioned, self.major, self.flags, self.device = versioned, major, flags, device
        self.code, self.bits = code, bits or 8 * array.dtype.itemsize
        self.shape = more.get("shape", array.shape)
        self.strides = tuple(s // array.dtype.itemsize for s in array.strides) if strides == "own" else strides
        self.data = more.get("data", array.ctypes.data)
        self.byte_offset = more.get("byte_offset", 0)
        self.kept = []

    def __dlpack__(self, **keywords):
        if not self.versioned and keywords:
            raise TypeError("__dlpack__() takes no keyword arguments")  # as producers before DLPack 1.0 do
        rank = len(self.shape)
        shape = (ctypes.c_int64 * rank)(*self.shape)
        strides = (ctypes.c_int64 * rank)(*self.strides) if self.strides is not None else None
        tensor = _Tensor(self.data, self.device, 0, rank, self.code, self.bits, 1, shape, strides, self.byte_offset)
        if self.versioned:
            managed = _ManagedVersioned(self.major, 0, None, None, self.flags, tensor)
        else:
            managed = _Managed(tensor, None, None)
        self.kept += [shape, strides, managed]
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        return _new_capsule(ctypes.addressof(managed), name, None)

    def __dlpack_device__(self):
        return (self.device, 0)


class Namespace:
    """An array library of which only from_dlpack is known."""

    @staticmethod
    def from_dlpack(producer):
        return ("taken", np.from_dlpack(producer))


class LibraryProducer(Producer):
    """A producer whose library can take arrays over."""

    def __array_namespace__(self):
        return Namespace
