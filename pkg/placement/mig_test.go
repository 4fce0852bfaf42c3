// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// TestMIGDevices checks that several containers share a MIG device, and that a container with
// several GPUs gets no MIG device. A process uses at most one MIG device.
func TestMIGDevices(t *testing.T) {
	migs := gpus(16, 16)
	for k := range migs {
		migs[k].UUID = "MIG-" + migs[k].UUID[len("GPU-"):]
	}
	for name, c := range map[string]struct {
		gpus []gpu.GPU
		pod  request.Pod
		want string
	}{
		"a part each":               {migs, pod("p", app("a", mem(4)), app("b", mem(4))), "a:MIG-0 b:MIG-0"},
		"a whole device":            {migs, pod("p", app("a", whole)), "a:MIG-0"},
		"two devices":               {migs, pod("p", app("a", mem(4), mem(4))), "no a"},
		"two GPUs beside devices":   {append(migs, gpus(16, 16)...), pod("p", app("a", mem(4), mem(4))), "a:0,1"},
		"one GPU beside one device": {append(migs[:1:1], gpus(16)...), pod("p", app("a", mem(4), mem(4))), "no a"},
	} {
		if got := placeAll(New(c.gpus, config.Default()), c.pod); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	mixed := slices.Concat(migs[:1], gpus(16, 16))
	for i := range mixed[1:] {
		mixed[1+i].Index = 1 + i
	}
	l := New(mixed, config.Default())
	for _, uuid := range []string{"GPU-0", "GPU-1"} {
		half := part(50)
		half.GPUs = []string{uuid}
		placeAll(l, pod("half of "+uuid, app("a", half)))
	}
	exclusive := mem(10)
	exclusive.GPUs = []string{"MIG-0"}
	placeAll(l, pod("on the device", app("a", exclusive)))
	divided := part(80)
	divided.SplitPPM = 100_000
	if got := placeAll(l, pod("p", app("a", divided))); got != "a:0,1" {
		t.Errorf("a divided share beside a MIG device with room: %q", got)
	}
	_, err := New(migs, config.Default()).Place(pod("p", app("a", mem(4), mem(4))), "a")
	if err == nil || !strings.HasSuffix(err.Error(), "; a container with several GPUs gets no MIG device") {
		t.Errorf("two devices: %v", err)
	}
}
