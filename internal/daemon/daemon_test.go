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

func TestLogger(t *testing.T) {
	var lines bytes.Buffer
	log, err := Logger(config.Log{Level: "warn", Format: "json"}, &lines)
	if err != nil {
		t.Fatal(err)
	}
	if log.Enabled(t.Context(), 0) || !log.Enabled(t.Context(), 4) {
		t.Error("the level is not the one of the configuration")
	}
	log.Warn("a line")
	current.Load().flush()
	var line struct{ Msg string }
	if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Msg != "a line" {
		t.Errorf("the format is not the one of the configuration: %q, %v", &lines, err)
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
