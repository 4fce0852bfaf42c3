// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

func TestConfig(t *testing.T) {
	if cfg, err := Config(""); err != nil || cfg.HTTP != config.Default().HTTP {
		t.Errorf("without a file: %+v, %v", cfg.HTTP, err)
	}
	path := filepath.Join(t.TempDir(), "config.toml")
	if _, err := Config(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is missing: %v", err)
	}
	if err := os.WriteFile(path, []byte("[http]\naddress = \":1\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if cfg, err := Config(path); err != nil || cfg.HTTP.Address != ":1" {
		t.Errorf("a file: %+v, %v", cfg.HTTP, err)
	}
}

// TestErrorsOfCommandLinesNameTheHelp checks that only errors in the command line refer to the help.
func TestErrorsOfCommandLinesNameTheHelp(t *testing.T) {
	for line, want := range map[string]string{
		"--nonsense":       ": run 'program --help'\n",
		"nonsense":         ": run 'program --help'\n",
		"prat":             "Did you mean this? part: run 'program --help'\n",
		"part --nonsense":  ": run 'program part --help'\n",
		"part no-argument": ": run 'program part --help'\n",
		"part":             "program: part failed\n",
	} {
		root := &cobra.Command{Use: "program", SilenceUsage: true, SilenceErrors: true}
		root.AddCommand(&cobra.Command{Use: "part", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return errors.New("part failed") }})
		root.SetArgs(strings.Fields(line))
		var errs strings.Builder
		if status := execute(t.Context(), root, &errs); status != 1 || !strings.HasSuffix(errs.String(), want) {
			t.Errorf("%s: status %d, %q, want %q at the end", line, status, errs.String(), want)
		}
	}
}

func TestLogger(t *testing.T) {
	var lines bytes.Buffer
	log, err := Logger(config.Log{Level: "warn", Format: "json"}, &lines)
	if err != nil {
		t.Fatal(err)
	}
	if log.Enabled(t.Context(), 0) || !log.Enabled(t.Context(), 4) {
		t.Error("the level is not the configured level")
	}
	log.Warn("a line")
	current.Load().flush()
	var line struct{ Msg string }
	if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Msg != "a line" {
		t.Errorf("the format is not the configured format: %q, %v", &lines, err)
	}
	if _, err := Logger(config.Log{Level: "loud"}, io.Discard); err == nil || !strings.Contains(err.Error(), "log.level") {
		t.Errorf("a level that is none: %v", err)
	}
}

func TestAPIServer(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := APIServer("", "p"); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Errorf("outside of a cluster: %v", err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	content := `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://example.invalid"}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := APIServer(path, "p")
	if err != nil || cfg.Host != "https://example.invalid" || !strings.HasPrefix(cfg.UserAgent, "p/") {
		t.Errorf("by a kubeconfig: %+v, %v", cfg, err)
	}
}
