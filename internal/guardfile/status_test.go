// SPDX-License-Identifier: Apache-2.0

package guardfile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAStatusThatCannotBeReadIsAnError(t *testing.T) {
	dir := t.TempDir()
	if _, loaded, err := Loaded(dir); loaded || err != nil {
		t.Errorf("without one: %t, %v", loaded, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Loaded(filepath.Join(dir, "file")); err == nil {
		t.Error("of a directory that is a file it is no error")
	}
}
