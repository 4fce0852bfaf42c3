// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// apiServer is an API server that grants a token for the view, and refuses requests without an answer.
// apiServer records the paths of the requests.
type apiServer struct {
	mu    sync.Mutex
	paths []string
	// answers contains the answers as JSON, by path.
	answers map[string]string
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths = append(s.paths, r.URL.Path)
	if answer, ok := s.answers[r.URL.Path]; ok {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, answer)
		return
	}
	if !strings.HasSuffix(r.URL.Path, "/token") {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"kind":"TokenRequest","status":{"token":"t","expirationTimestamp":%q}}`, time.Now().Add(time.Hour).Format(time.RFC3339))
}

// startAPIServer returns an API server and its address.
func startAPIServer(t *testing.T) (*apiServer, string) {
	t.Helper()
	s := &apiServer{}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, server.URL
}

// TestAgentNamespace checks that the command looks for agents in the namespace of the flag.
func TestAgentNamespace(t *testing.T) {
	s, url := startAPIServer(t)
	if _, err := output(t, kubectlVgpu(), "get", "gpus", "--kubeconfig", kubeconfig(t), "--server", url, "--agent-namespace", "gpus"); err == nil {
		t.Error("the command succeeds without rights")
	}
	for _, path := range s.paths {
		if strings.Contains(path, "/namespaces/") && !strings.Contains(path, "/namespaces/gpus/") {
			t.Errorf("the command requested %s", path)
		}
	}
	if !strings.Contains(strings.Join(s.paths, " "), "/namespaces/gpus/") {
		t.Errorf("the command requested only %q", s.paths)
	}
}

// TestPortOfTheView checks that the command serves the page at the port of the flag, by a port that
// another program uses.
func TestPortOfTheView(t *testing.T) {
	_, url := startAPIServer(t)
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	_, port, err := net.SplitHostPort(used.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, err = output(t, kubectlVgpu(), "view", "--kubeconfig", kubeconfig(t), "--server", url, "--port", port)
	if err == nil || !strings.Contains(err.Error(), "choose another --port") || !strings.Contains(err.Error(), ":"+port) {
		t.Errorf("port %s is in use, and the command returned %v", port, err)
	}
}

// TestSortBy checks that every list refuses an unknown order.
func TestSortBy(t *testing.T) {
	refused := 0
	for _, root := range Commands() {
		walk(root, func(cmd *cobra.Command) {
			if cmd.Flags().Lookup("sort-by") == nil {
				return
			}
			names := strings.Fields(cmd.CommandPath())[len(strings.Fields(root.CommandPath())):]
			_, err := output(t, root, slices.Concat(names, []string{"--sort-by", "weight"})...)
			if err == nil || !strings.Contains(err.Error(), `"weight"; allowed: name, `) {
				t.Errorf("%s --sort-by weight: %v", cmd.CommandPath(), err)
			}
			refused++
		})
	}
	if refused < 8 {
		t.Errorf("only %d lists have an order", refused)
	}
}

// TestStatusReadsTheRunDirectory checks that the command reads containers below the directory of the
// flag.
func TestStatusReadsTheRunDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "containers", "broken", "main"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "containers", "broken", "main", "limits"), []byte("no page"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := output(t, vgpuctl(), "status", "--run-dir", dir)
	if err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a limits page that is no page: %v", err)
	}
}

// TestDoctorReadsTheConfiguration checks that the command reads the file of the flag.
func TestDoctorReadsTheConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte("[node]\nslots_per_gpu = 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := output(t, vgpuctl(), "doctor", "--config", path); err == nil || !strings.Contains(err.Error(), "node.slots_per_gpu is 0") {
		t.Errorf("an invalid configuration: %v", err)
	}
}
