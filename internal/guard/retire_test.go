// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/uninstall/nodefiles"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const (
	running = "0fc30b6a-0000-4000-8000-00000000000a" // this pod has processes
	gone    = "0fc30b6a-0000-4000-8000-00000000000d"
)

func TestARetiringGuardRefusesItsPodsAlone(t *testing.T) {
	r := rules{Settings: guardfile.SettingsFrom(config.Default())}
	r.Retiring = []string{running}
	for _, env := range [][]string{nil, {"NVIDIA_VISIBLE_DEVICES=all"}} {
		_, err := r.Judge(Container{PodUID: running, Name: "main", Env: env}, true)
		if err == nil || !strings.Contains(err.Error(), "delete the container's pod") {
			t.Errorf("with %q, a container without limits: %v", env, err)
		}
		if hide, err := r.Judge(Container{PodUID: gone, Name: "main", Env: env}, true); hide || err != nil {
			t.Errorf("with %q a container of another pod: hidden %t, %v", env, hide, err)
		}
	}
}

// TestARemovedGuardEnds checks that a removed guard and its stand-in both exit.
func TestARemovedGuardEnds(t *testing.T) {
	n := newNode(t)
	processes := func() int {
		count := 0
		files, err := filepath.Glob("/proc/[0-9]*/exe")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if program, err := os.Readlink(file); err == nil && strings.TrimSuffix(program, " (deleted)") == n.program {
				count++
			}
		}
		return count
	}
	eventually.Holds(t, 10*time.Second, "guard and stand-in run", func() bool { return processes() == 2 })
	if err := nodefiles.RemoveProgram(n.program); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, 10*time.Second, "guard and stand-in have ended", func() bool { return processes() == 0 })
}
