package guard

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
)

// A guard goes by the list of a newer agent as far as it understands it: a pod that it
// takes for one that asks is refused, which is safe.
func TestAListOfANewerAgent(t *testing.T) {
	sum := sha256.Sum256([]byte("a\nb\n"))
	good := hex.EncodeToString(sum[:])
	for _, c := range []struct {
		name, content string
		want          []Pod
	}{
		{"a new field", fmt.Sprintf(`{"version":1,"cats":3,"sha256":%q,"pods":["a","b"]}`, good), []Pod{{UID: "a"}, {UID: "b"}}},
		{"a new version", fmt.Sprintf(`{"version":2,"sha256":%q,"pods":["a","b"],"cats":["x"]}`, good), []Pod{{UID: "a"}, {UID: "b"}}},
		{"no version", fmt.Sprintf(`{"sha256":%q,"pods":["a","b"]}`, good), nil},
		{"another checksum", `{"version":2,"sha256":"00","pods":["a","b"]}`, nil},
		{"another meaning", fmt.Sprintf(`{"version":2,"sha256":%q,"pods":[{"uid":"a"}]}`, good), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(layout.AskingPods(dir), []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := ReadAsking(dir)
			if !slices.Equal(got, c.want) || errors.Is(err, ErrAsking) != (c.want == nil) {
				t.Errorf("got %v, %v, want %v", got, err, c.want)
			}
		})
	}
}

// The runtime may still run the guard of the release before, which reads the settings of
// this one.
func TestSettingsOfANewerAgent(t *testing.T) {
	program := filepath.Join(t.TempDir(), "99-nri-vgpu-guard")
	install := t.TempDir()
	g := New(program)
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(layout.GuardSettings(program), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(fmt.Sprintf(`{"installDir":%q,"plugin":"91-x","cats":{"count":3},"exemptNamespaces":["ours"]}`, install))
	if s, installed := g.settings(); !installed || s.Plugin != "91-x" || !slices.Equal(s.ExemptNamespaces, []string{"ours"}) {
		t.Errorf("with a new field the settings are %+v, %v", s, installed)
	}
	write(fmt.Sprintf(`{"installDir":%q,"plugin":{"name":"x","index":91}}`, install))
	if s, installed := g.settings(); !installed || s.Plugin != "91-x" || !slices.Equal(s.ExemptNamespaces, []string{"ours"}) {
		t.Errorf("settings that cannot be read replace those before: %+v, %v", s, installed)
	}
}
