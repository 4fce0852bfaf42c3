// SPDX-License-Identifier: Apache-2.0

package layout

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"strings"
	"unicode"
)

//go:embed layout.go
var source string

// CHeader renders the declarations of layout.go as a C header, with their
// comments, and with static assertions for every size and offset.
func CHeader() (string, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "layout.go", source, parser.ParseComments)
	if err != nil {
		return "", fmt.Errorf("parse layout: %w", err)
	}
	conf := types.Config{Sizes: types.SizesFor("gc", "amd64")}
	pkg, err := conf.Check("layout", fset, []*ast.File{file}, nil)
	if err != nil {
		return "", fmt.Errorf("check layout: %w", err)
	}
	h := &header{pkg: pkg, sizes: conf.Sizes}
	h.printf("// SPDX-License-Identifier: Apache-2.0\n")
	h.printf("// Code generated from pkg/limits/internal/layout/layout.go by `go generate ./pkg/limits`. DO NOT EDIT.\n")
	h.printf("#ifndef VG_PAGES_GEN_H\n#define VG_PAGES_GEN_H\n\n#include <stddef.h>\n#include <stdint.h>\n")
	for _, decl := range file.Decls {
		if gen, ok := decl.(*ast.GenDecl); ok {
			if err := h.declare(gen); err != nil {
				return "", err
			}
		}
	}
	h.printf("\n#endif\n")
	return h.String(), nil
}

type header struct {
	strings.Builder
	pkg   *types.Package
	sizes types.Sizes
}

func (h *header) printf(format string, args ...any) { fmt.Fprintf(h, format, args...) }

func (h *header) declare(gen *ast.GenDecl) error {
	for _, spec := range gen.Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			h.constant(spec)
		case *ast.TypeSpec:
			if err := h.structure(gen.Doc, spec); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *header) constant(spec *ast.ValueSpec) {
	name := spec.Names[0].Name
	value := h.pkg.Scope().Lookup(name).(*types.Const).Val()
	n, _ := constant.Uint64Val(value)
	h.comment("", spec.Doc)
	if n > 1<<32-1 {
		h.printf("#define VG_%s UINT64_C(0x%x)\n", snake(name, true), n)
		return
	}
	h.printf("#define VG_%s %du\n", snake(name, true), n)
}

func (h *header) structure(doc *ast.CommentGroup, spec *ast.TypeSpec) error {
	name := "vg_" + snake(spec.Name.Name, false)
	typ := h.pkg.Scope().Lookup(spec.Name.Name).Type().Underlying().(*types.Struct)
	fields := spec.Type.(*ast.StructType).Fields.List
	h.printf("\n")
	h.comment("", doc)
	h.printf("struct %s {\n", name)
	for i, f := range fields {
		h.comment("\t", f.Doc)
		decl, err := cField(typ.Field(i))
		if err != nil {
			return fmt.Errorf("%s.%s: %w", spec.Name.Name, f.Names[0].Name, err)
		}
		h.printf("\t%s;\n", decl)
	}
	h.printf("};\n")
	h.printf("_Static_assert(sizeof(struct %s) == %d, \"size of %s\");\n", name, h.sizes.Sizeof(typ), name)
	for i, off := range h.offsets(typ) {
		field := snake(typ.Field(i).Name(), false)
		h.printf("_Static_assert(offsetof(struct %s, %s) == %d, \"offset of %s.%s\");\n", name, field, off, name, field)
	}
	return nil
}

func (h *header) offsets(typ *types.Struct) []int64 {
	var vars []*types.Var
	for f := range typ.Fields() {
		vars = append(vars, f)
	}
	return h.sizes.Offsetsof(vars)
}

func (h *header) comment(indent string, doc *ast.CommentGroup) {
	if doc == nil {
		return
	}
	for _, line := range strings.Split(strings.TrimSpace(doc.Text()), "\n") {
		h.printf("%s// %s\n", indent, line)
	}
}

// cField returns the C declaration of a field: a fixed-size integer, a structure of package layout,
// or an array of integers or structures.
func cField(f *types.Var) (string, error) {
	typ, dim := f.Type(), ""
	if array, ok := typ.(*types.Array); ok {
		typ, dim = array.Elem(), fmt.Sprintf("[%d]", array.Len())
	}
	name := snake(f.Name(), false) + dim
	switch t := typ.(type) {
	case *types.Named:
		return "struct vg_" + snake(t.Obj().Name(), false) + " " + name, nil
	case *types.Basic:
		if t.Info()&types.IsUnsigned != 0 {
			return t.Name() + "_t " + name, nil
		}
	}
	return "", fmt.Errorf("type %s has no fixed layout in C", f.Type())
}

// snake turns a Go name such as GPUTimeNs into C's gpu_time_ns.
func snake(name string, upper bool) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		startsWord := unicode.IsUpper(r) && i > 0 &&
			(!unicode.IsUpper(runes[i-1]) || (i+1 < len(runes) && unicode.IsLower(runes[i+1])))
		if startsWord {
			b.WriteByte('_')
		}
		if upper {
			b.WriteRune(unicode.ToUpper(r))
		} else {
			b.WriteRune(unicode.ToLower(r))
		}
	}
	return b.String()
}
