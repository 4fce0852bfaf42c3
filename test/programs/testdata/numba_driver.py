# SPDX-License-Identifier: Apache-2.0
"""Uses the GPU through Numba's own layer over the CUDA driver.

The simulated GPU computes nothing, so the program checks only the copied data, and the
granted and the refused memory. The program prints one line of JSON.

    numba_driver.py LIBRARY fill|streams|modules
"""
import ctypes
import json
import sys

import numpy as np
from numba import cuda
from numba.cuda.cudadrv import driver as layer
from numba.cuda.cudadrv import enums
from numba.cuda.cudadrv.drvapi import API_PROTOTYPES

MIB = 1 << 20
OUT_OF_MEMORY = 2

TEXT = """
.version 6.4
.target sm_50
.address_size 64
.extern .func (.param .b32 out) twice (.param .b32 in);
.visible .global .align 4 .u32 answers[2] = {42, 43};
.visible .entry work(.param .u64 a, .param .u32 n)
{
    .reg .b32 %r<2>;
    { call (%r0), twice, (%r1); }
    ret;
}
"""
TWICE = """
.version 6.4
.target sm_50
.address_size 64
.visible .func (.param .b32 out) twice (.param .b32 in) { ret; }
"""


def speak_cuda_12():
    """Binds the two functions whose `_v2` in CUDA 13 also takes a context.

    Numba 0.56 is older, and calls each `_v2` that the driver has.
    """
    version = ctypes.c_int()
    layer.driver.cuDriverGetVersion(ctypes.byref(version))
    if version.value < 13000:
        return
    for name in ("cuCtxGetDevice", "cuCtxSynchronize"):
        function = getattr(layer.driver.lib, name)
        function.restype, function.argtypes = API_PROTOTYPES[name][0], API_PROTOTYPES[name][1:]
        layer.driver._ctypes_wrap_fn(name, function)


def allocate(size):
    """Returns an array of this many bytes, or None if the driver refuses the allocation."""
    try:
        return cuda.device_array(size, np.uint8)
    except layer.CudaAPIError as error:
        assert error.code == OUT_OF_MEMORY, error
        return None


def fill():
    """Allocates until a refusal, then smaller pieces until no memory is left."""
    kept, piece = [], 64 * MIB
    while piece >= MIB // 4:
        array = allocate(piece)
        if array is None:
            piece //= 2
        else:
            kept.append(array)
    granted = sum(array.nbytes for array in kept)
    free, total = cuda.current_context().get_memory_info()
    assert free < 2 * MIB and total >= granted, (free, total)
    del kept[0]
    again = allocate(64 * MIB)  # Numba frees memory whose release it deferred, and allocates again
    assert again is not None
    return {"granted": granted, "total": total}


def streams():
    """Copies, sets and events in streams."""
    ones = np.arange(MIB, dtype=np.int32)
    pairs = []
    for _ in range(4):
        stream, begin, end = cuda.stream(), cuda.event(), cuda.event()
        begin.record(stream)
        there = cuda.to_device(ones, stream=stream)
        other = cuda.device_array_like(there, stream=stream)
        other.copy_to_device(there, stream=stream)
        end.record(stream)
        pairs.append((stream, begin, end, other))
    for stream, begin, end, other in pairs:
        end.wait(cuda.default_stream())
        stream.synchronize()
        assert end.query() and cuda.event_elapsed_time(begin, end) >= 0
        assert (other.copy_to_host(stream=stream) == ones).all()
    with cuda.pinned(ones):
        there = cuda.to_device(ones, stream=pairs[0][0])
    cuda.synchronize()
    mapped = cuda.mapped_array(1000, dtype=np.int32)
    mapped[:] = 5
    layer.device_memset(there, 0, there.nbytes)
    assert not there.copy_to_host().any() and mapped.sum() == 5000
    managed = cuda.managed_array(1000, dtype=np.int32)
    managed[:] = 6
    assert managed.sum() == 6000
    return {}


def modules():
    """Links, loads, looks up, launches and unloads."""
    context = cuda.current_context()
    linker = layer.Linker.new(cc=context.device.compute_capability)
    linker.add_ptx(TEXT.encode())
    linker.add_ptx(TWICE.encode())
    image, size = linker.complete()
    assert size > len(TEXT)
    module = context.create_module_image(image)
    address, size = module.get_global_symbol("answers")
    back = np.zeros(2, np.int32)
    layer.device_to_host(back, address, back.nbytes)
    assert size == 8 and list(back) == [42, 43], (size, back)
    function = module.get_function("work")
    assert function.attrs.regs > 0 and function.attrs.maxthreads >= 128
    assert context.get_active_blocks_per_multiprocessor(function, 128, 0) > 0
    stream = cuda.stream()
    there = cuda.device_array(100, np.uint8)
    count = ctypes.c_uint(100)
    layer.launch_kernel(function.handle, 4, 1, 1, 32, 1, 1, 0, stream.handle,
                        [there.device_ctypes_pointer, count])
    stream.synchronize()
    try:
        context.create_module_ptx(TEXT)
        raise AssertionError("a module that lacks a function was loaded")
    except layer.CudaAPIError as error:
        assert error.code == 209, error  # CUDA_ERROR_NO_BINARY_FOR_GPU
    module.unload()
    assert enums.CUDA_ERROR_OUT_OF_MEMORY == OUT_OF_MEMORY
    return {}


if __name__ == "__main__":
    speak_cuda_12()
    assert layer.driver.lib._name == sys.argv[1], layer.driver.lib._name
    result = {"fill": fill, "streams": streams, "modules": modules}[sys.argv[2]]()
    print(json.dumps({"devices": len(cuda.gpus), **result}))
