# SPDX-License-Identifier: Apache-2.0
"""Uses the GPU through Halide's runtime for CUDA.

Halide compiles pipelines to PTX text with LLVM. The simulated GPU computes nothing, so the
program checks only the copied data, and the granted and the refused memory. The program prints
one line of JSON.

    halide_driver.py run|fill
"""
import json
import sys

import halide as hl
import numpy as np

MIB = 1 << 20
GPU = hl.get_jit_target_from_environment()


def copy():
    """Copies pictures and parts of pictures to the GPU and back."""
    picture = np.arange(640 * 480 * 3, dtype=np.uint32).reshape(3, 480, 640)
    want = picture.copy()
    whole = hl.Buffer(picture)
    part = hl.Buffer(picture[:, 100:200, 50:150])
    for buffer in whole, part:
        buffer.set_host_dirty()
        assert buffer.copy_to_device(GPU) == 0
    picture[:] = 0
    for buffer in whole, part:
        buffer.set_device_dirty()
        assert buffer.copy_to_host() == 0
        assert buffer.device_sync() == 0
        if buffer is whole:
            assert (picture == want).all()
            picture[:] = 0
    assert (picture[:, 100:200, 50:150] == want[:, 100:200, 50:150]).all()
    assert not picture[:, :100].any() and not picture[:, 200:].any()
    for buffer in whole, part:
        assert buffer.device_free() == 0


def pipeline():
    """Returns a pipeline of two kernels, one with shared memory and one with functions of libdevice."""
    x, y, bx, by, tx, ty = (hl.Var(name) for name in ("x", "y", "bx", "by", "tx", "ty"))
    waves, blurred, work = hl.Func("waves"), hl.Func("blurred"), hl.Func("work")
    waves[x, y] = hl.sin(hl.f32(x)) + hl.pow(hl.f32(y), 1.5)
    blurred[x, y] = waves[x - 1, y] + waves[x + 1, y]
    work[x, y] = hl.u8(hl.clamp(blurred[x, y], 0, 255))
    work.gpu_tile(x, y, bx, by, tx, ty, 16, 16)
    blurred.compute_at(work, bx).gpu_threads(x, y)
    waves.compute_root().gpu_tile(x, y, bx, by, tx, ty, 16, 16)
    work.compile_jit(GPU)
    return work


def run():
    """Copies pictures, and runs the pipeline into pictures of several sizes."""
    copy()
    work = pipeline()
    for width in 64, 640, 6400, 64:
        out = hl.Buffer(hl.UInt(8), [width, 480])
        work.realize(out, GPU)
        assert out.device_dirty() and out.copy_to_host() == 0
    return 0


def fill():
    """Runs a pipeline into new pictures until a refusal, then into smaller pictures."""
    x, bx, tx = hl.Var("x"), hl.Var("bx"), hl.Var("tx")
    work = hl.Func("work")
    work[x] = hl.u8(x)
    work.gpu_tile(x, bx, tx, 256)
    work.compile_jit(GPU)
    kept, piece = [], 64 * MIB
    while piece >= MIB // 4:
        out = hl.Buffer(hl.UInt(8), [piece])
        try:
            work.realize(out, GPU)
            kept.append(out)
        except RuntimeError as error:
            assert "CUDA_ERROR_OUT_OF_MEMORY" in str(error), error
            print(error, file=sys.stderr)
            piece //= 2
    return sum(out.size_in_bytes() for out in kept)


if __name__ == "__main__":
    print(json.dumps({"granted": {"run": run, "fill": fill}[sys.argv[1]]()}))
