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

func TestReduce(t *testing.T) {
	const filtered = `{"a":1,"linux":{"seccomp":{"defaultAction":"x"},"b":[1,2]}}`
	for _, c := range []struct {
		limits        limits
		before, after string
	}{
		{limits{noFilter: true}, filtered, `{"a":1,"linux":{"b":[1,2]}}`},
		{limits{}, filtered, filtered},
		{limits{noFilter: true}, `{ "linux": { "b": 1 } }`, `{ "linux": { "b": 1 } }`},
		{limits{noHugePages: true}, `{"linux":{"resources":{"hugepageLimits":[],"b":1}}}`, `{"linux":{"resources":{"b":1}}}`},
		{limits{}, `{"linux":{"resources":{"hugepageLimits":[]}}}`, `{"linux":{"resources":{"hugepageLimits":[]}}}`},
		{limits{noSysResource: true, oomScore: 7}, `{"process":{"oomScoreAdj":-997,"c":2}}`, `{"process":{"c":2,"oomScoreAdj":7}}`},
		{limits{noSysResource: true}, `{"process":{"oomScoreAdj":1000}}`, `{"process":{"oomScoreAdj":1000}}`},
		{limits{}, `{"process":{"oomScoreAdj":-997}}`, `{"process":{"oomScoreAdj":-997}}`},
		{
			limits{noSysResource: true},
			`{"process":{"capabilities":{"bounding":["CAP_KILL","CAP_SYS_RESOURCE"],"effective":["CAP_KILL"]}}}`,
			`{"process":{"capabilities":{"bounding":["CAP_KILL"],"effective":["CAP_KILL"]}}}`,
		},
		{limits{}, `{"process":{"capabilities":{"bounding":["CAP_SYS_RESOURCE"]}}}`, `{"process":{"capabilities":{"bounding":["CAP_SYS_RESOURCE"]}}}`},
	} {
		file := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(file, []byte(c.before), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := c.limits.reduce(file); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(content) != c.after {
			t.Errorf("%+v: %s became %s, want %s", c.limits, c.before, content, c.after)
		}
	}
}
