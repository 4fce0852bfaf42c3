// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// TestSettingsOfANewerAgent checks that the previous release's guard can read this release's
// settings: a runtime may still run that guard.
func TestSettingsOfANewerAgent(t *testing.T) {
	program := filepath.Join(t.TempDir(), "99-nri-vgpu-guard")
	install := t.TempDir()
	g := New(program)
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(paths.GuardSettings(program), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(fmt.Sprintf(`{"installDir":%q,"plugin":"91-x","cats":{"count":3},"exemptNamespaces":["ours"]}`, install))
	if s, installed := g.rules(); !installed || s.Plugin != "91-x" || !slices.Equal(s.ExemptNamespaces, []string{"ours"}) {
		t.Errorf("with a new field the settings are %+v, %v", s, installed)
	}
	write(fmt.Sprintf(`{"installDir":%q,"plugin":{"name":"x","index":91}}`, install))
	if s, installed := g.rules(); !installed || s.Plugin != "91-x" || !slices.Equal(s.ExemptNamespaces, []string{"ours"}) {
		t.Errorf("settings that cannot be read replace those before: %+v, %v", s, installed)
	}
}
