// SPDX-License-Identifier: Apache-2.0

package notices

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/image"
)

// TestText checks the licences of vgpuctl, and of a program with the C library of Debian.
func TestText(t *testing.T) {
	const program = "../../build/bin/vgpuctl"
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: run make build", err)
	}
	libraries, err := image.Programs(map[string]string{"/bin/test": "/bin/sh"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := Text("../..", []string{program}, libraries)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\nGo standard library\n",
		"github.com/spf13/cobra v",              // a linked module
		", third_party/forked/golang/LICENSE\n", // a part that a module has copied
		"\npackage libc6\n",
		"GNU LESSER GENERAL PUBLIC LICENSE", // to which the package refers
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the text lacks %q", want)
		}
	}
	if strings.Contains(string(text), ours) {
		t.Error("the text names nri-vgpu as a third party")
	}
}

func TestLicencesIn(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"LICENSE", "notice.txt", "License-2.0", "COPYING", "license.go", "licenses_test.txt", "README",
		"third_party/a/LICENCE", "third_party/a/code.go", "a/testdata/LICENSE", ".github/LICENSE",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := licencesIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"COPYING", "LICENSE", "License-2.0", "notice.txt", "third_party/a/LICENCE"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("licences (-want +got):\n%s", diff)
	}
	if _, err := licencesIn(filepath.Join(dir, "third_party")); err == nil {
		t.Error("a module without a licence is no error")
	}
}
