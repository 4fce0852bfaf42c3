// SPDX-License-Identifier: Apache-2.0

package driverlib

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/interposer/symbols"
)

const build = "../../build"

var cuda, nvml = Kinds[0], Kinds[1]

func interposer(t testing.TB, kind Kind) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(build, "lib", kind.Name))
	if err != nil {
		t.Fatalf("%v (run make build first)", err)
	}
	return content
}

// driver compiles a library that exports functions. A name that begins with "="
// becomes a variable.
func driver(t testing.TB, kind Kind, names ...string) string {
	t.Helper()
	var source strings.Builder
	for _, name := range names {
		if variable, ok := strings.CutPrefix(name, "="); ok {
			fmt.Fprintf(&source, "int %s = 1;\n", variable)
		} else {
			fmt.Fprintf(&source, "int %s(void) { return 7; }\n", name)
		}
	}
	fmt.Fprintln(&source, "__attribute__((visibility(\"hidden\"))) int cuHidden(void) { return 1; }\nstatic int cuStatic = 1;\nint *cu_use(void) { return &cuStatic; }")
	path := filepath.Join(t.TempDir(), kind.Name)
	cmd := exec.Command("cc", "-shared", "-fPIC", "-x", "c", "-", "-Wl,-soname,"+kind.Name, "-o", path)
	cmd.Stdin = strings.NewReader(source.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cc: %v: %s", err, out)
	}
	return path
}

func exportNames(t testing.TB, content []byte) []string {
	t.Helper()
	file, err := openELF(readerOf(content))
	if err != nil {
		t.Fatal(err)
	}
	all, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range all {
		if isExported(&all[i]) {
			names = append(names, all[i].Name)
		}
	}
	slices.Sort(names)
	return names
}

func TestVariantExportsWhatTheDriverExports(t *testing.T) {
	base := []string{"cuInit", "cuGetProcAddress", "cuMemAlloc_v2", "cuLaunchKernel"}
	for name, c := range map[string]struct {
		more []string
		want []Unknown
	}{
		"old":      {},
		"known":    {more: []string{"cuLaunchHostFunc_v2", "cuMemcpyWithAttributesAsync", "=cudbgIpcFlag"}},
		"passing":  {more: []string{"cuFrobnicate"}, want: []Unknown{{"cuFrobnicate", symbols.Pass}}},
		"refused":  {more: []string{"cuMemAllocFrob", "cuMemFree_v9"}, want: []Unknown{{"cuMemAllocFrob", symbols.Refuse}, {"cuMemFree_v9", symbols.Refuse}}},
		"capture":  {more: []string{"cuStreamBeginFrob"}, want: []Unknown{{"cuStreamBeginFrob", symbols.Capture}}},
		"variable": {more: []string{"=cudbgFrob"}, want: []Unknown{{"cudbgFrob", ""}}},
		"long":     {more: []string{"cu" + strings.Repeat("x", 100)}, want: []Unknown{{"cu" + strings.Repeat("x", 100), ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			exports, err := ReadExports(driver(t, cuda, append(slices.Clone(base), c.more...)...), cuda)
			if err != nil {
				t.Fatal(err)
			}
			got, unknown, err := Rewrite(interposer(t, cuda), exports, cuda)
			if err != nil {
				t.Fatal(err)
			}
			unknown = slices.DeleteFunc(unknown, func(u Unknown) bool { return u.Name == "cu_use" })
			if !slices.Equal(unknown, c.want) {
				t.Errorf("unknown are %v, want %v", unknown, c.want)
			}
			want := append([]string{"dlopen", "dlmopen", "cu_use"}, base...)
			for _, more := range c.more {
				if u := slices.IndexFunc(c.want, func(u Unknown) bool { return u.Name == strings.TrimPrefix(more, "=") }); u < 0 || c.want[u].Treatment != "" {
					want = append(want, strings.TrimPrefix(more, "="))
				}
			}
			slices.Sort(want)
			if names := exportNames(t, got); !slices.Equal(names, want) {
				t.Errorf("it exports %v, want %v", names, want)
			}
			loads(t, got)
		})
	}
}

// loads checks a library with the loader and with binutils.
func loads(t *testing.T, content []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), cuda.Name)
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"ldd", "-r", path}, {"readelf", "-aW", path}, {"nm", "-D", path}} {
		var complaints bytes.Buffer
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Stderr = &complaints
		out, err := cmd.Output()
		if err != nil || complaints.Len() > 0 || strings.Contains(string(out), "undefined symbol") || strings.Contains(string(out), "<corrupt") {
			t.Errorf("%v: %v: %s: %.2000s", command, err, complaints.Bytes(), out)
		}
	}
}

func TestTooManyNames(t *testing.T) {
	names := []string{"cuInit", "cuGetProcAddress", "cuMemAlloc_v2"}
	for i := range 150 {
		names = append(names, fmt.Sprintf("cuFrob%03d", i), fmt.Sprintf("cuAllocFrob%03d", i))
	}
	exports, err := ReadExports(driver(t, cuda, names...), cuda)
	if err != nil {
		t.Fatal(err)
	}
	content, unknown, err := Rewrite(interposer(t, cuda), exports, cuda)
	if err != nil {
		t.Fatal(err)
	}
	given := offered(unknown)
	if len(unknown) != 301 || len(given) != 128 || slices.ContainsFunc(given, func(u Unknown) bool { return u.Treatment != symbols.Pass }) {
		t.Errorf("%d names, and %d got a stub: %v", len(unknown), len(given), given)
	}
	if got := len(exportNames(t, content)); got != 128+3+2 {
		t.Errorf("it exports %d names", got)
	}
}

func TestNVML(t *testing.T) {
	exports, err := ReadExports(driver(t, nvml, "nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlFrob"), nvml)
	if err != nil {
		t.Fatal(err)
	}
	content, unknown, err := Rewrite(interposer(t, nvml), exports, nvml)
	if err != nil || !slices.Contains(unknown, Unknown{"nvmlFrob", symbols.Pass}) {
		t.Fatalf("unknown are %v, %v", unknown, err)
	}
	loads(t, content)
}

func TestBadDrivers(t *testing.T) {
	good := driver(t, cuda, "cuInit", "cuGetProcAddress", "cuMemAlloc_v2")
	content, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("GROUP ( libcuda.so )\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	damaged := func(change func([]byte) []byte) string {
		path := filepath.Join(t.TempDir(), cuda.Name)
		if err := os.WriteFile(path, change(slices.Clone(content)), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		path   string
		err    error
		phrase string
	}{
		"absent":               {filepath.Join(t.TempDir(), "no"), os.ErrNotExist, "no"},
		"directory":            {t.TempDir(), ErrNotLibrary, ""},
		"text":                 {text, ErrNotLibrary, ""},
		"empty":                {damaged(func([]byte) []byte { return nil }), ErrNotLibrary, ""},
		"cut off":              {damaged(func(b []byte) []byte { return b[:len(b)/2] }), ErrNotLibrary, ""},
		"head alone":           {damaged(func(b []byte) []byte { return b[:64] }), ErrNotLibrary, ""},
		"32 bit":               {damaged(func(b []byte) []byte { b[4] = 1; return b }), ErrNotLibrary, ""},
		"another machine":      {damaged(func(b []byte) []byte { b[18] = byte(elf.EM_RISCV); return b }), ErrNotLibrary, "EM_RISCV"},
		"ours":                 {filepath.Join(build, "lib", cuda.Name), ErrOurs, ""},
		"without cuInit":       {driver(t, cuda, "cuGetProcAddress", "cuMemAlloc_v2"), ErrNotDriver, "cuInit"},
		"without look-up":      {driver(t, cuda, "cuInit", "cuMemAlloc_v2"), ErrNotDriver, "cuGetProcAddress"},
		"cuInit is a variable": {driver(t, cuda, "=cuInit", "cuGetProcAddress", "cuMemAlloc_v2"), ErrNotDriver, "cuInit"},
		"the other library":    {driver(t, nvml, "nvmlInit_v2"), ErrNotDriver, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadExports(c.path, cuda)
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.phrase) || !strings.Contains(err.Error(), c.path) {
				t.Errorf("got %v, want %v with %q", err, c.err, c.phrase)
			}
		})
	}
}

func TestRewritesOnlyOurs(t *testing.T) {
	exports := []Export{{Name: "cuInit"}}
	ours := interposer(t, cuda)
	theirs, err := os.ReadFile(driver(t, cuda, "cuInit"))
	if err != nil {
		t.Fatal(err)
	}
	made, _, err := Rewrite(ours, exports, cuda)
	if err != nil {
		t.Fatal(err)
	}
	// A variant without unknown names cannot be distinguished from the original, so Rewrite accepts
	// the variant.
	if _, _, err := Rewrite(made, exports, cuda); err != nil {
		t.Error(err)
	}
	named, _, err := Rewrite(ours, append(exports, Export{Name: "cuFrob"}), cuda)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"driver": theirs, "empty": nil, "half": ours[:len(ours)/2], "head": ours[:64], "made already": named,
	} {
		if _, _, err := Rewrite(content, exports, cuda); !errors.Is(err, ErrNotOurs) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
