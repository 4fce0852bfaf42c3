// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
)

// changes are changes of the configuration after which the spec of a container with vgpu-cores means
// something else.
var changes = map[string]func(*config.Config){
	"totals":           func(c *config.Config) { c.Dialects.Native.Amounts = config.AmountsTotal },
	"dialect disabled": func(c *config.Config) { c.Dialects.Native.Enabled = false },
	"name changed":     func(c *config.Config) { c.Dialects.Native.Cores = "example.com/cores" },
	"name of another plugin": func(c *config.Config) {
		c.Dialects.Native.Enabled = false
		c.Node.ForeignResources = []string{"nri-vgpu.io/*"}
	},
	"exempt namespace": func(c *config.Config) {
		c.Dialects.Native.Enabled = false
		c.Node.ExemptNamespaces = []string{"ns"}
	},
	"policy": func(c *config.Config) { c.Compute.Policy = config.ComputeShare },
	"memory": func(c *config.Config) { c.Node.ReservedMemoryMiB = 4096 },
}

// podWithCoresAlone adds a pod whose first container names only cores, and whose second container
// requests no GPU.
func (n *node) podWithCoresAlone(uid string) {
	pod := n.pod(uid, "main", "side")
	n.api.change(func() {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nri-vgpu.io/vgpu-cores": resource.MustParse("50")}
	})
}

// reconfigure restarts the agent with another configuration.
func (n *node) reconfigure(change func(*config.Config)) {
	n.t.Helper()
	n.stopHook()
	change(&n.cfg)
	n.startHook()
	n.hook.Sweep()
}

func (n *node) start(uid, name string, spec *rspec.Spec) error {
	pod := sandbox(uid)
	return n.runtime.StartContainer(context.Background(), &api.StartContainerRequest{Pod: pod, Container: fromSpec(pod, name, spec)})
}

// TestConfigurationTakesNoGPU checks that a restarted container keeps its GPU after any change of the
// configuration. The pod's other containers still restart without a GPU.
func TestConfigurationTakesNoGPU(t *testing.T) {
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.podWithCoresAlone("u")
			mustCreate(t, n, "u")
			if _, err := n.createIn(sandbox("u"), "side"); err != nil {
				t.Fatal(err)
			}
			held := n.hook.Held("u")
			n.reconfigure(change)
			if unadjusted := n.hook.Unadjusted(); unadjusted != 0 {
				t.Errorf("%d running containers count as containers without limits", unadjusted)
			}
			n.exit("u")
			spec, err := n.create("u", wantsAll)
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := mountAt(spec, paths.ContainerLimits); !ok {
				t.Error("the restarted container has no limits")
			}
			wantEnv(t, spec, adjust.VisibleDevices, held[0].Devices[0].UUID)
			if err := n.start("u", "main", spec); err != nil {
				t.Error(err)
			}
			side, err := n.createIn(sandbox("u"), "side")
			if err != nil {
				t.Fatal(err)
			}
			if err := n.start("u", "side", side); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(held, n.hook.Held("u")); diff != "" {
				t.Errorf("the ledger (-before +after):\n%s", diff)
			}
			n.deletePod("u")
			n.exit("u")
			if left := n.hook.Held("u"); left != nil {
				t.Errorf("the deleted pod holds %+v", left)
			}
		})
	}
}

// TestNewConfigurationHoldsForNewContainers checks that a container without an allocation follows the
// current configuration, also in a pod that holds GPUs.
func TestNewConfigurationHoldsForNewContainers(t *testing.T) {
	n := newNode(t)
	n.podWithCoresAlone("u")
	mustCreate(t, n, "u")
	n.reconfigure(changes["totals"])
	n.podWithCoresAlone("v")
	if _, err := n.create("v"); err == nil {
		t.Error("a new container without memory was created")
	}
	if _, err := n.createIn(sandbox("v"), "side"); err == nil {
		t.Error("a container of a pod with an invalid request was created")
	}
	n.api.change(func() {
		n.api.pods["u"].Spec.Containers[1].Resources.Limits = corev1.ResourceList{"nri-vgpu.io/vgpu-cores": resource.MustParse("50")}
	})
	if _, err := n.createIn(sandbox("u"), "side"); err == nil {
		t.Error("a container with an invalid request and no allocation was created")
	}
}
