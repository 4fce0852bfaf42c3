// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
)

// toolkit is the shell script that makes the parts of a CUDA toolkit that clang needs. The script's
// arguments are the toolkit's directory and the driver's directory. NVIDIA's assembler and linker
// are replaced by programs of testdata, and the library of NVIDIA's device functions is empty.
const toolkit = `set -eu
mkdir -p "$1/bin" "$1/include" "$1/lib64" "$1/nvvm/libdevice"
echo "#define CUDA_VERSION 11050" >"$1/include/cuda.h"
clang-14 --target=nvptx64-nvidia-cuda -x c -emit-llvm -c /dev/null -o "$1/nvvm/libdevice/libdevice.10.bc"
gcc-12 -O1 -Wall -Werror testdata/ptxas.c -o "$1/bin/ptxas" -L"$2" -l:libcuda.so.1
cp testdata/nvlink "$1/bin"
`

// clangOnce guards the compilation, which needs a simulated machine.
var clangOnce sync.Once

// compileWithClang compiles the programs for OpenMP with clang once, and returns their directory.
func compileWithClang(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(compiled, "clang")
	clangOnce.Do(func() {
		m := simtest.New(t, 1, card)
		cuda := filepath.Join(dir, "cuda")
		run := func(name string, args ...string) {
			cmd := exec.Command(name, args...)
			cmd.Env = append(append(os.Environ(), m.Env()...), "PATH="+filepath.Join(cuda, "bin")+":"+os.Getenv("PATH"))
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %v\n%s", cmd.Args, err, said)
			}
		}
		run("sh", "-c", toolkit, "toolkit", cuda, m.LibraryDir)
		for _, program := range []string{"openmp", "openmp_tasks"} {
			run("clang-14", "-O1", "-Wall", "-Werror", "-no-pie", "-fopenmp", "-fopenmp-targets=nvptx64",
				"-Xopenmp-target", "-march=sm_70", "--cuda-path="+cuda,
				// The runtime opens its part for CUDA by name.
				"-Wl,--disable-new-dtags,-rpath,/usr/lib/llvm-14/lib",
				filepath.Join("testdata", program+".c"), "-o", filepath.Join(dir, program))
		}
	})
	return dir
}
