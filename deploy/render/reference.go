// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
)

const (
	referenceFile  = "docs/reference/configuration-keys.md"
	referenceBegin = "<!-- Written by `make chart`, from pkg/config and config.toml. -->\n"
	referenceEnd   = "<!-- end -->\n"
)

// makeReference inserts the list of all keys into the document.
func makeReference(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, referenceFile))
	if err != nil {
		return nil, fmt.Errorf("read the document: %w", err)
	}
	before, rest, begins := strings.Cut(string(text), referenceBegin)
	_, after, ends := strings.Cut(rest, referenceEnd)
	if !begins || !ends {
		return nil, errors.New("the document has no place for the list of keys")
	}
	all, err := keys(root)
	if err != nil {
		return nil, err
	}
	var list strings.Builder
	section := ""
	for _, k := range all {
		if table, _, _ := strings.Cut(k.path, "."); table != section {
			section = table
			fmt.Fprintf(&list, "\n## %s\n\n", section)
		}
		k.describe(&list)
	}
	return []byte(before + referenceBegin + list.String() + "\n" + referenceEnd + after), nil
}

// describe writes a key as an element of a list. Values that a comment lists become a nested list.
func (k key) describe(out *strings.Builder) {
	fmt.Fprintf(out, "- **`%s`** = `%s`", k.path, k.value)
	if k.allowed != "" && k.typ.Kind() != reflect.Bool {
		fmt.Fprintf(out, " (%s)", strings.TrimPrefix(k.allowed, "a "))
	}
	if k.comment == "" {
		out.WriteString("\n")
		return
	}
	out.WriteString("  \n")
	open := false
	for line := range strings.SplitSeq(k.comment, "\n") {
		text := strings.TrimSpace(line)
		indent := len(line) - len(strings.TrimLeft(line, " "))
		word, rest, listed := strings.Cut(text, "  ")
		switch {
		case text == "":
		case listed && indent >= 2 && indent <= 4:
			if open {
				out.WriteString("\n")
			}
			fmt.Fprintf(out, "  - `%s`: %s", word, strings.TrimSpace(rest))
			open = true
		case open:
			out.WriteString(" " + text)
		default:
			fmt.Fprintf(out, "  %s", text)
			open = true
		}
	}
	out.WriteString("\n")
}
