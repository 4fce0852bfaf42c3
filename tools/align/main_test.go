// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestOlderVersions(t *testing.T) {
	var modules []*module
	for dir, data := range map[string]string{
		"product": `{"Require": [
			{"Path": "golang.org/x/net", "Version": "v0.9.0"},
			{"Path": "k8s.io/api", "Version": "v0.37.1"},
			{"Path": "only.here/a", "Version": "v1.0.0"},
			{"Path": "pseudo", "Version": "v0.0.0-20260102000000-bbbbbbbbbbbb"}]}`,
		"peer": `{"Require": [
			{"Path": "golang.org/x/net", "Version": "v0.10.0"},
			{"Path": "k8s.io/api", "Version": "v0.0.0"},
			{"Path": "pseudo", "Version": "v0.0.0-20260101000000-aaaaaaaaaaaa"}],
			"Replace": [
			{"Old": {"Path": "k8s.io/api"}, "New": {"Path": "k8s.io/api", "Version": "v0.37.1"}},
			{"Old": {"Path": "not.required"}, "New": {"Path": "not.required", "Version": "v9.0.0"}}]}`,
	} {
		m, err := parse(dir, []byte(data))
		if err != nil {
			t.Fatal(err)
		}
		modules = append(modules, m)
	}
	var got []string
	for _, o := range olderVersions(modules) {
		got = append(got, o.Error())
	}
	want := []string{
		"product/go.mod: golang.org/x/net v0.9.0, elsewhere v0.10.0",
		"peer/go.mod: pseudo v0.0.0-20260101000000-aaaaaaaaaaaa, elsewhere v0.0.0-20260102000000-bbbbbbbbbbbb",
	}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("olderVersions returned %q, want %q", got, want)
	}
}
