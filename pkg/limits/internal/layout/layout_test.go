// SPDX-License-Identifier: Apache-2.0

package layout_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits/internal/layout"
)

const headerPath = "../../../../interposer/src/pages/pages_gen.h"

func TestHeaderIsCurrent(t *testing.T) {
	want, err := layout.CHeader()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(headerPath)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is stale: run go generate ./pkg/limits", headerPath)
	}
}

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		name string
		got  uintptr
		want uintptr
	}{
		{"limits page", unsafe.Sizeof(layout.LimitsPage{}), 4096},
		{"usage header", unsafe.Sizeof(layout.UsageHeader{}), 4096},
		{"slot: whole cache lines", unsafe.Sizeof(layout.Slot{}) % 64, 0},
		{"usage: whole pages", unsafe.Sizeof(layout.UsagePage{}) % 4096, 0},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d bytes, want %d", c.name, c.got, c.want)
		}
	}
}

// TestCompilerAgrees compares the sizes and offsets of a C compiler with the Go
// compiler's sizes and offsets.
func TestCompilerAgrees(t *testing.T) {
	structs := map[string]reflect.Type{
		"vg_limits_device":    reflect.TypeFor[layout.LimitsDevice](),
		"vg_limits_copy":      reflect.TypeFor[layout.LimitsCopy](),
		"vg_limits_page":      reflect.TypeFor[layout.LimitsPage](),
		"vg_slot_device":      reflect.TypeFor[layout.SlotDevice](),
		"vg_slot":             reflect.TypeFor[layout.Slot](),
		"vg_container_device": reflect.TypeFor[layout.ContainerDevice](),
		"vg_distrust":         reflect.TypeFor[layout.Distrust](),
		"vg_usage_header":     reflect.TypeFor[layout.UsageHeader](),
		"vg_usage_page":       reflect.TypeFor[layout.UsagePage](),
	}
	var program, want strings.Builder
	program.WriteString("#include <stdio.h>\n#include \"pages_gen.h\"\nint main(void)\n{\n")
	for name, typ := range structs {
		fmt.Fprintf(&program, "printf(\"%s %%zu\\n\", sizeof(struct %s));\n", name, name)
		fmt.Fprintf(&want, "%s %d\n", name, typ.Size())
		for f := range typ.Fields() {
			field := layout.Snake(f.Name)
			fmt.Fprintf(&program, "printf(\"%s.%s %%zu\\n\", offsetof(struct %s, %s));\n", name, field, name, field)
			fmt.Fprintf(&want, "%s.%s %d\n", name, field, f.Offset)
		}
	}
	program.WriteString("return 0;\n}\n")
	if got := compileAndRun(t, program.String()); got != want.String() {
		t.Errorf("C and Go disagree:\nC:\n%s\nGo:\n%s", got, want.String())
	}
}

func compileAndRun(t *testing.T, program string) string {
	t.Helper()
	dir := t.TempDir()
	src, exe := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	if err := os.WriteFile(src, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I", filepath.Dir(headerPath), "-o", exe, src)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	out, err := exec.Command(exe).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
