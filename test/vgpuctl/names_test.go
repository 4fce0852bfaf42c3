// SPDX-License-Identifier: Apache-2.0

package vgpuctl

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/driverlib"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// compile builds a C program that is linked to a driver's library.
func (m *machine) compile(driver, source string, flags ...string) string {
	m.Helper()
	program := filepath.Join(m.TempDir(), "program")
	cmd := exec.Command("cc", append([]string{"-x", "c", "-", "-x", "none", "-o", program}, append(flags, driver, "-ldl")...)...)
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		m.Fatalf("cc: %v: %s", err, out)
	}
	return program
}

// oneGiB is a memory limit.
var oneGiB = []string{"--memory", "1Gi"}

// under runs a program with a driver's libraries, natively if limit is empty. under returns the
// program's standard output and standard error.
func (m *machine) under(branch string, limit []string, program string, args ...string) (stdout, stderr string, status int) {
	m.Helper()
	command := append([]string{program}, args...)
	if limit != nil {
		command = slices.Concat([]string{filepath.Join(m.build, "bin/vgpuctl"), "run"}, limit, []string{"--"}, command)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append([]string{"LD_LIBRARY_PATH=" + filepath.Join(m.build, "gpusim/drivers", branch)}, withoutPath(m.env)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func withoutPath(env []string) []string {
	var rest []string
	for _, entry := range env {
		if !strings.HasPrefix(entry, "LD_LIBRARY_PATH=") {
			rest = append(rest, entry)
		}
	}
	return rest
}

const declarations = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stddef.h>
typedef unsigned long long address;
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuStreamSynchronize(void *);
static int begin(void)
{
	void *context;
	return cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context);
}
`

// importsLater is a program that imports a name of CUDA 13.2.
const importsLater = declarations + `
int cuLaunchHostFunc_v2(void *, void (*)(void *), void *, unsigned);
static void call(void *data) { *(int *)data = 1; }
int main(void)
{
	int called = 0;
	if (begin() || cuLaunchHostFunc_v2(NULL, call, &called, 0) || cuStreamSynchronize(NULL))
		return 1;
	printf("called %d\n", called);
	return 0;
}
`

// asks is a program that prints which names exist, by dlsym and by cuGetProcAddress.
const asks = declarations + `
int cuGetProcAddress_v2(const char *, void **, int, unsigned long, int *);
int main(int count, char **names)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library || begin())
		return 1;
	for (int i = 1; i < count; i++) {
		void *found = NULL;
		int status = -1;
		int result = cuGetProcAddress_v2(names[i], &found, 13040, 0, &status);
		printf("%s: dlsym %s, next %s, looked up %s, result %d, status %d\n", names[i], dlsym(library, names[i]) ? "finds it" : "does not",
		       dlsym(RTLD_DEFAULT, names[i]) ? "finds it" : "does not", found ? "is there" : "is not", result, status);
	}
	return 0;
}
`

// callsUnknown is a program that calls unknown names, which it imports and looks up.
const callsUnknown = declarations + `
int cuFrobnicate(int *);
int cuMemAllocFrob(address *, size_t);
int cuGetProcAddress_v2(const char *, void **, int, unsigned long, int *);
int main(void)
{
	address memory = 0;
	void *found = NULL;
	int value = 0, status = 0, result;
	if (begin())
		return 1;
	result = cuFrobnicate(&value);
	printf("frobnicate %d %d\n", result, value);
	result = cuMemAllocFrob(&memory, 2ull << 30);
	printf("alloc %d\n", result);
	result = cuMemAllocFrob(&memory, 2ull << 30);
	printf("again %d\n", result);
	result = cuGetProcAddress_v2("cuMemAllocFrob", &found, 13040, 0, &status);
	printf("looked up %d %s\n", result, found ? "found" : "not found");
	result = cuGetProcAddress_v2("cuFrobnicate", &found, 13040, 0, &status);
	printf("looked up %d %s\n", result, found ? "found" : "not found");
	return 0;
}
`

// TestImportOfALaterDriver checks that a program that imports a name of a driver newer than 580
// starts and runs, with and without limits.
func TestImportOfALaterDriver(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, flags := range [][]string{nil, {"-Wl,-z,now"}, {"-Wl,-z,lazy"}} {
		program := m.compile(filepath.Join(m.build, "gpusim/drivers/future/libcuda.so.1"), importsLater, flags...)
		for _, limit := range [][]string{nil, oneGiB} {
			out, errs, status := m.under("future", limit, program)
			if out != "called 1\n" || status != 0 {
				t.Errorf("limit %v, %v: status %d, %q, %s", limit, flags, status, out, errs)
			}
		}
	}
}

// TestFeatureTests checks that a program that asks whether the driver has a name gets the driver's
// answer.
func TestFeatureTests(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	program := m.compile(filepath.Join(m.build, "gpusim/libcuda.so.1"), asks)
	for _, branch := range []string{"r535", "r550", "r580", "future"} {
		names := []string{"cuMemAlloc_v2", "cuGreenCtxCreate", "cuMemGetMemPool", "cuMemcpyBatchAsync_v2", "cuLaunchHostFunc_v2", "cuMemcpyWithAttributesAsync", "cuNone"}
		native, _, status := m.under(branch, nil, program, names...)
		if status != 0 || strings.Count(native, "\n") != len(names) {
			t.Fatalf("%s: status %d: %q", branch, status, native)
		}
		limited, errs, _ := m.under(branch, oneGiB, program, names...)
		if limited != native {
			t.Errorf("%s: natively\n%sunder limits\n%s%s", branch, native, limited, errs)
		}
	}
}

// copiesLater is a program that copies within the device by a function of CUDA 13.2, which the
// program looks up. copiesLater prints the duration.
const copiesLater = declarations + `
#include <time.h>
int cuMemAlloc_v2(address *, size_t);
int cuGetProcAddress_v2(const char *, void **, int, unsigned long, int *);
int main(int count, char **how)
{
	int (*copy)(address, address, size_t, void *, void *) = NULL;
	int (*copy_3d)(void *, unsigned long long, void *) = NULL;
	/* CUDA_MEMCPY3D_BATCH_OP: two operands of a type and 32 bytes, the extent, two words. */
	size_t op[14] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 512ull << 20, 1, 1, 0};
	const size_t size = 512ull << 20;
	struct timespec from, to;
	int status;
	if (begin() || cuMemAlloc_v2(&op[1], size) || cuMemAlloc_v2(&op[6], size))
		return 1;
	if (cuGetProcAddress_v2("cuMemcpyWithAttributesAsync", (void **)&copy, 13040, 0, &status) ||
	    cuGetProcAddress_v2("cuMemcpy3DWithAttributesAsync", (void **)&copy_3d, 13040, 0, &status))
		return 2;
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (int i = 0; i < 3000; i++)
		if (how[1][0] == '3' ? copy_3d(op, 0, NULL) : copy(op[6], op[1], size, NULL, NULL))
			return 3;
	if (cuStreamSynchronize(NULL))
		return 4;
	clock_gettime(CLOCK_MONOTONIC, &to);
	printf("%f", (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec));
	return 0;
}
`

// TestLaterCopiesAreLimited checks that copies by functions of CUDA 13.2 take no more of the GPU
// than the limit.
func TestLaterCopiesAreLimited(t *testing.T) {
	t.Parallel()
	timed.Run(t, testLaterCopiesAreLimited)
}

func testLaterCopiesAreLimited(t testing.TB) {
	m := newMachine(t)
	program := m.compile(filepath.Join(m.build, "gpusim/drivers/future/libcuda.so.1"), copiesLater)
	for _, how := range []string{"1d", "3d"} {
		seconds := func(limit ...string) float64 {
			out, errs, status := m.under("future", limit, program, how)
			took, err := strconv.ParseFloat(out, 64)
			if status != 0 || err != nil {
				t.Fatalf("%s, %v: status %d, %q %s", how, limit, status, out, errs)
			}
			return took
		}
		// A pause of the machine makes both durations longer.
		native, limited := seconds(), seconds("--memory", "2Gi", "--cores", "25")
		if limited < 3*native {
			t.Errorf("%s: at 25 %% the copies took %.2f s, natively %.2f s", how, limited, native)
		}
	}
}

// TestUnknownNames checks a program on an unknown driver. Functions that cannot allocate memory
// pass, the interposer refuses functions that can allocate, and the program holds no memory beyond
// the limit.
func TestUnknownNames(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	program := m.compile(filepath.Join(m.build, "gpusim/drivers/unknown/libcuda.so.1"), callsUnknown)
	out, _, _ := m.under("unknown", nil, program)
	if want := "frobnicate 0 42\nalloc 0\nagain 0\nlooked up 0 found\nlooked up 0 found\n"; out != want {
		t.Fatalf("natively %q, want %q", out, want)
	}
	out, errs, _ := m.under("unknown", oneGiB, program)
	if want := "frobnicate 0 42\nalloc 801\nagain 801\nlooked up 500 not found\nlooked up 0 found\n"; out != want {
		t.Errorf("under limits %q, want %q\n%s", out, want, errs)
	}
	lines := strings.Split(strings.TrimSpace(errs), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "refused cuMemAllocFrob: ") || !strings.Contains(lines[1], "withheld ") {
		t.Errorf("the program printed %q, want a line for the call and a line for the look-up", errs)
	}
}

// TestLibrariesAsTheyAreBuilt checks the case that vgpuctl cannot read the driver's library or
// cannot write the copy. Programs get the libraries as built, which know the names of driver 580
// and later names.
func TestLibrariesAsTheyAreBuilt(t *testing.T) {
	t.Parallel()
	build, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(build, "lib")
	good := filepath.Join(build, "gpusim/libcuda.so.1")
	broken := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := os.WriteFile(broken, []byte("\x7fELF"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		parent, driver, phrase string
	}{
		"a broken driver":     {t.TempDir(), broken, broken},
		"no driver":           {t.TempDir(), "", "libcuda.so.1 was not found"},
		"a parent of no kind": {"/dev/null/drivers", good, "/dev/null"},
	} {
		v, err := driverlib.Make(lib, c.parent, driverlib.Paths{"libcuda.so.1": c.driver})
		if v.Dir != lib || err == nil || !strings.Contains(err.Error(), c.phrase) || len(v.Libraries) != 2 || v.Libraries[0].Error == "" {
			t.Errorf("%s: %+v, %v, want %s with %q", name, v, err, lib, c.phrase)
		}
	}
}

// TestVariantOfOneLibrary checks that with half of a driver, one library gets its variant, and
// programs use the other library as built.
func TestVariantOfOneLibrary(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	lib := filepath.Join(m.build, "lib")
	v, err := driverlib.Make(lib, t.TempDir(), driverlib.Paths{"libcuda.so.1": filepath.Join(m.build, "gpusim/libcuda.so.1")})
	if err == nil || !strings.Contains(err.Error(), "libnvidia-ml.so.1 was not found") || v.Dir == lib {
		t.Fatalf("got %+v, %v", v, err)
	}
	for name, same := range map[string]bool{"libcuda.so.1": false, "libnvidia-ml.so.1": true} {
		plain, err := os.ReadFile(filepath.Join(lib, name))
		if err != nil {
			t.Fatal(err)
		}
		made, err := os.ReadFile(filepath.Join(v.Dir, name))
		if err != nil || bytes.Equal(made, plain) != same {
			t.Errorf("%s: as it is built is %v, want %v (%v)", name, !same, same, err)
		}
	}
}

// TestLoaderIsContent checks that the loader binds every name of a variant, and prints no error.
func TestLoaderIsContent(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, branch := range []string{"r535", "r550", "r580", "future", "unknown"} {
		dir := filepath.Join(m.build, "gpusim/drivers", branch)
		v, err := driverlib.Make(filepath.Join(m.build, "lib"), t.TempDir(), driverlib.Paths{
			"libcuda.so.1": filepath.Join(dir, "libcuda.so.1"), "libnvidia-ml.so.1": filepath.Join(dir, "libnvidia-ml.so.1"),
		})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/true")
		cmd.Env = []string{"LD_PRELOAD=" + filepath.Join(v.Dir, "libcuda.so.1") + ":" + filepath.Join(v.Dir, "libnvidia-ml.so.1"), "LD_DEBUG=symbols,bindings,versions", "LD_BIND_NOW=1"}
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), "error:") || strings.Contains(string(out), "undefined symbol") {
			t.Errorf("%s: %v: %.3000s", branch, err, out)
		}
		if !strings.Contains(string(out), filepath.Join(v.Dir, "libcuda.so.1")) {
			t.Errorf("%s: the loader did not load it", branch)
		}
	}
}

// asksMusl is a program that prints whether names are found, and the results of cuInit and of
// unknown functions without a driver.
const asksMusl = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names)
{
	int (*init)(unsigned) = dlsym(RTLD_DEFAULT, "cuInit");
	for (int i = 1; i < count; i++)
		printf("%s %s\n", names[i], dlsym(RTLD_DEFAULT, names[i]) ? "yes" : "no");
	printf("cuInit %d\n", init ? init(0) : -1);
	return 0;
}
`

// TestMusl checks that programs of images with musl start with the interposer preloaded, and find
// the driver's names in the interposer.
func TestMusl(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	compiler, err := exec.LookPath("musl-gcc")
	if err != nil {
		if out, err := exec.Command("apt-get", "install", "-y", "--no-install-recommends", "musl-tools").CombinedOutput(); err != nil {
			t.Fatalf("musl-gcc is missing, and Debian's package musl-tools cannot be installed: %v: %s", err, out)
		}
		compiler = "musl-gcc"
	}
	program := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command(compiler, "-x", "c", "-", "-o", program)
	cmd.Stdin = strings.NewReader(asksMusl)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("musl-gcc: %v: %s", err, out)
	}
	lib := filepath.Join(m.build, "lib")
	for branch, want := range map[string]string{
		"r535":    "cuMemAlloc_v2 yes\ncuGreenCtxCreate no\ncuLaunchHostFunc_v2 no\ncuMemAllocFrob no\ncuInit 800\n",
		"future":  "cuMemAlloc_v2 yes\ncuGreenCtxCreate yes\ncuLaunchHostFunc_v2 yes\ncuMemAllocFrob no\ncuInit 800\n",
		"unknown": "cuMemAlloc_v2 yes\ncuGreenCtxCreate yes\ncuLaunchHostFunc_v2 yes\ncuMemAllocFrob yes\ncuInit 800\n",
	} {
		dir := filepath.Join(m.build, "gpusim/drivers", branch)
		v, err := driverlib.Make(lib, t.TempDir(), driverlib.Paths{
			"libcuda.so.1": filepath.Join(dir, "libcuda.so.1"), "libnvidia-ml.so.1": filepath.Join(dir, "libnvidia-ml.so.1"),
		})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program, "cuMemAlloc_v2", "cuGreenCtxCreate", "cuLaunchHostFunc_v2", "cuMemAllocFrob")
		cmd.Env = []string{"LD_PRELOAD=" + filepath.Join(v.Dir, "libcuda.so.1") + ":" + filepath.Join(v.Dir, "libnvidia-ml.so.1")}
		out, err := cmd.Output()
		if err != nil || string(out) != want {
			t.Errorf("%s: %v, %q, want %q", branch, err, out, want)
		}
	}
}
