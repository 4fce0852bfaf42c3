// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestGenerate checks that each command has a page without this program's flags, and that two runs
// write equal files.
func TestGenerate(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	for _, dir := range []string{first, second} {
		// The pages must not depend on the user who writes them.
		for _, name := range []string{"HOME", "KUBECONFIG", "XDG_RUNTIME_DIR", "USER", "NO_COLOR"} {
			t.Setenv(name, dir)
		}
		if err := run([]string{"--output", dir, "--date", "1"}); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{
		"man/vgpuctl.1":                   "Run programs under GPU limits",
		"man/vgpuctl-run.1":               "the exit status is 127",
		"man/kubectl-vgpu-describe-pod.1": "explain why it waits",
		"man/mgctl-get-processes.1":       "--token",
		"completions/vgpuctl.bash":        "__start_vgpuctl",
		"completions/vgpuctl.zsh":         "#compdef vgpuctl",
		"completions/mgctl.fish":          "complete -c mgctl",
	} {
		text, err := os.ReadFile(filepath.Join(first, file))
		plain := strings.ReplaceAll(string(text), `\-`, "-")
		if err != nil || !strings.Contains(plain, want) || strings.Contains(plain, "--date") {
			t.Errorf("%s: %v, %.400s", file, err, plain)
		}
	}
	if out, err := exec.Command("diff", "-r", first, second).CombinedOutput(); err != nil {
		t.Errorf("two runs differ: %s", out)
	}
}
