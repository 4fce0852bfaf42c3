// SPDX-License-Identifier: Apache-2.0

// Package tutorial follows docs/tutorials/laptop.md: programs on a simulated GPU, and pods on the demo's
// node, with an upgrade and an uninstallation.
package tutorial

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	page     = "docs/tutorials/laptop.md"
	patience = time.Minute
)

// shell runs commands at the root of the sources, and returns their output. before are commands that set
// the environment.
func shell(t *testing.T, before, commands string) string {
	t.Helper()
	source, err := testbed.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", before+"\n"+commands)
	var out bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = source, &out, &out
	err = cmd.Run()
	t.Logf("$ %s\n%s", strings.TrimSpace(commands), &out)
	if err != nil {
		t.Fatalf("%s: %v", commands, err)
	}
	return out.String()
}

// blocks returns the blocks of commands in a section of the tutorial. The tutorial indents them, as parts
// of a list.
func blocks(t *testing.T, section string, want int) []string {
	t.Helper()
	all := documented.Commands(t, page, section)
	if len(all) != want {
		t.Fatalf("section %q has %d blocks of commands, want %d", section, len(all), want)
	}
	for i := range all {
		all[i] = regexp.MustCompile(`(?m)^ {3}`).ReplaceAllString(all[i], "")
	}
	return all
}

func contains(t *testing.T, output string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(output, want) {
			t.Errorf("the output lacks %q", want)
		}
	}
}

// TestPrograms follows the first part, after the build.
func TestPrograms(t *testing.T) {
	commands := strings.Join(blocks(t, "Part 1: two programs on one GPU", 6)[1:], "\n")
	output := shell(t, "", strings.ReplaceAll(commands, "/tmp/sim", t.TempDir()+"/sim"))
	contains(t, output, `"total_mem_seen":2147483648`, "refused 64 MiB for cuMemAlloc: the container's limit on GPU 0 is 2048 MiB", "HOLDS MiB")
}

// TestPods follows the second part. The web page, which a command serves until an interrupt, has other
// tests.
func TestPods(t *testing.T) {
	const root = "/var/lib/nri-vgpu-clusters/demo"
	if _, err := os.Stat(root); err == nil {
		t.Fatalf("the demo runs already (%s): run make demo-down", root)
	}
	steps := blocks(t, "Part 2: pods on a Kubernetes node", 7)
	made := strings.NewReplacer(`sudo env PATH="$PATH" make demo-down`, "build/bin/demo down", `sudo env PATH="$PATH" make demo`, "build/bin/demo up")
	t.Cleanup(func() {
		if out, err := exec.CommandContext(context.Background(), "bash", "-c", "cd ../../.. && "+made.Replace(steps[6])).CombinedOutput(); err != nil {
			t.Errorf("end the demo: %v\n%s", err, out)
		}
	})
	up := shell(t, "", made.Replace(steps[0]))
	environment := strings.Join(regexp.MustCompile(`(?m)^ *export (?:KUBECONFIG|PATH)=.*$`).FindAllString(up, -1), "\n")
	contains(t, up, "kubectl vgpu and the web page show what the simulated GPUs measure")
	looks := regexp.MustCompile(`(?m)^export .*$`).ReplaceAllString(steps[1], "")
	contains(t, shell(t, environment, looks), "default/quarter/train", "4096/4096 MiB", "HOLDER")

	apply, describe, _ := strings.Cut(steps[3], "\nPOD\n")
	shell(t, environment, apply+"\nPOD")
	eventually.Holds(t, patience, "the large pod is refused", func() bool {
		return strings.Contains(shell(t, environment, describe), `no GPU has room for container "train"`)
	})
	contains(t, shell(t, environment, steps[4]), "REVISION: 2", "4096/4096 MiB", "2048/2048 MiB")
	after := shell(t, environment, steps[5])
	contains(t, after, `"pods":"110"`, "4096 MiB")
	if strings.Contains(after, "nri-vgpu.io/vgpu") {
		t.Error("after the uninstallation, the Node offers GPUs")
	}
}
