// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nri-vgpu/nri-vgpu/internal/nri"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
)

// longest exceeds the largest message between the runtime and its plugins.
const longest = 4 << 20

// TestAnswersAreBounded checks that the hook's answers are short enough. The runtime never receives
// an answer that is too long, and sends no further request to the plugin.
func TestAnswersAreBounded(t *testing.T) {
	n := newNode(t, withVersion("v2.0.0"))
	n.pod("asks", "main=1024")
	n.pod("none", "main")
	// The text is nearly as long as allowed. Quoting expands each byte to four bytes.
	text := strings.Repeat("\x7f", nri.MostBytes-(4<<10))
	for _, tt := range []struct {
		name, uid string
		change    func(*rspec.Spec)
	}{
		{"a volume that requests a GPU", "none", addMount("/var/run/nvidia-container-devices/" + text)},
		{"a volume over our files", "asks", addMount("/usr/local/nri-vgpu/" + text)},
		{"capabilities of the driver, twice", "asks", addEnv(adjust.DriverCapabilities+"=all", adjust.DriverCapabilities+"="+text)},
	} {
		_, err := n.create(tt.uid, tt.change)
		if err == nil {
			t.Errorf("%s: it was created", tt.name)
		} else if len(err.Error()) > 2<<10 {
			t.Errorf("%s: it was refused with %d bytes", tt.name, len(err.Error()))
		}
		if took, err := n.ask(sandbox("none"), "main"); err != nil {
			t.Fatalf("%s: the next container waited for %v: %v", tt.name, took, err)
		}
	}
}

// TestContainersAreBounded checks that the hook refuses a container whose environment is too long.
// A request can be as long as the largest message, and the plugin's additions make the answer
// longer.
func TestContainersAreBounded(t *testing.T) {
	n := newNode(t)
	n.pod("asks", "main=1024")
	n.pod("none", "main")
	for _, length := range []int{nri.MostBytes, longest - 1500} {
		_, err := n.create("asks", addEnv(adjust.LDPreload+"="+strings.Repeat("x", length)))
		if err == nil || !strings.Contains(err.Error(), "environment") {
			t.Errorf("LD_PRELOAD of %d bytes: %.200v", length, err)
		}
		if took, err := n.ask(sandbox("none"), "main"); err != nil {
			t.Fatalf("the next container waited for %v: %v", took, err)
		}
	}
	if _, err := n.create("none", addEnv("A="+strings.Repeat("x", nri.MostBytes/2))); err != nil {
		t.Errorf("half as much as may be: %.200v", err)
	}
}

func TestPodsAreBounded(t *testing.T) {
	n := newNode(t)
	pod := sandbox("none")
	for _, tt := range []struct {
		bytes int
		ok    bool
	}{{nri.MostBytes / 2, true}, {nri.MostBytes, false}} {
		pod.Labels = map[string]string{"long": strings.Repeat("x", tt.bytes)}
		if err := n.runtime.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: pod}); (err == nil) != tt.ok {
			t.Errorf("labels of %d bytes: %v", tt.bytes, err)
		}
	}
}

// TestPreloadIsBounded checks the bound of LD_PRELOAD. If the spec sets the variable twice, a file
// on the node's /run names the libraries.
func TestPreloadIsBounded(t *testing.T) {
	n := newNode(t)
	for i, tt := range []struct {
		bytes int
		ok    bool
	}{{adjust.MostPreload, true}, {adjust.MostPreload + 1, false}, {128 << 10, false}} {
		uid := fmt.Sprint("asks-", i)
		n.pod(uid, "main=1024")
		_, err := n.create(uid, addEnv(adjust.LDPreload+"=/a.so", adjust.LDPreload+"="+strings.Repeat("x", tt.bytes)))
		if (err == nil) != tt.ok {
			t.Errorf("%d bytes: %v", tt.bytes, err)
		}
		file, err := os.Stat(filepath.Join(n.cfg.Paths.RunDir, "containers", uid, "main", paths.Preload))
		if (err == nil) != tt.ok || tt.ok && file.Size() > adjust.MostPreload+200 {
			t.Errorf("%d bytes: its file: %v, %v", tt.bytes, file, err)
		}
	}
}
