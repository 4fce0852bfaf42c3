// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCreatedBundle(t *testing.T) {
	for _, c := range []struct {
		args []string
		dir  string
		ok   bool
	}{
		{[]string{"--root", "/run/runc", "create", "--bundle", "/b", "id"}, "/b", true},
		{[]string{"create", "--bundle=/b", "id"}, "/b", true},
		{[]string{"run", "-b", "/b", "id"}, "/b", true},
		{[]string{"create", "id"}, ".", true},
		{[]string{"delete", "--force", "id"}, ".", false},
	} {
		if dir, ok := createdBundle(c.args); dir != c.dir || ok != c.ok {
			t.Errorf("%v: %q, %t, want %q, %t", c.args, dir, ok, c.dir, c.ok)
		}
	}
}

func TestDropFilter(t *testing.T) {
	for before, after := range map[string]string{
		`{"a":1,"linux":{"seccomp":{"defaultAction":"x"},"b":[1,2]}}`: `{"a":1,"linux":{"b":[1,2]}}`,
		`{ "linux": { "b": 1 } }`:                                     `{ "linux": { "b": 1 } }`,
	} {
		file := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := dropFilter(file); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(content) != after {
			t.Errorf("%s became %s, want %s", before, content, after)
		}
	}
}
