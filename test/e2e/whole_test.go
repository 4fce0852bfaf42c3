// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// TestWholeGPU checks that a container with all of a GPU runs as without nri-vgpu, except for the
// tools. No other container may get the GPU.
func TestWholeGPU(t *testing.T) {
	create(t, testbed.Pod("whole", filler("main", testbed.Limits{testbed.Memory: gpuMemory / mib})))
	uuid := checkFilled(t, "whole", gpuMemory)
	environment, _, err := bed.ExecOutput(t.Context(), "whole", "env")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(environment, "LD_PRELOAD") {
		t.Errorf("the container has LD_PRELOAD: %s", environment)
	}
	for path, want := range map[string]string{
		paths.ContainerRunDir:  "agent " + paths.Assignment,
		paths.ContainerPreload: "",
		paths.ContainerHomeDir: "bin",
	} {
		got, _, err := bed.ExecOutput(t.Context(), "whole", "ls", path)
		if want == "" && err == nil || want != "" && strings.Join(strings.Fields(got), " ") != want {
			t.Errorf("in %s the container has %q, want %q", path, got, want)
		}
	}

	if err := bed.RestartAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	create(t, testbed.Pod("next", filler("main", testbed.Limits{testbed.Memory: 1024})))
	if other := checkFilled(t, "next", gib); other == uuid {
		t.Errorf("another pod got a part of GPU %s, which was allocated as a whole", uuid)
	}
	checkFilled(t, "whole", gpuMemory)
	if files, err := filepath.Glob(bed.ContainerFiles(running(t, "whole"), "main") + "/*"); err != nil || len(files) != 1 {
		t.Errorf("the container's files on the node are %v, want %s alone: %v", files, paths.Assignment, err)
	}
}
