// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// byMPS returns a configuration in which containers share some GPUs through the Multi-Process
// Service.
func byMPS(uuids ...string) config.Config {
	cfg := config.Default()
	cfg.Node.SlotsPerGPU = 1000
	cfg.Sharing.Method = config.ShareByMPS
	cfg.Sharing.MPSGPUs = uuids
	return cfg
}

func TestAGPUServes48Clients(t *testing.T) {
	l := New(gpus(16), byMPS(config.AllGPUs))
	little := request.Share{Memory: request.Memory{Bytes: 1 << 20}, Slots: 1}
	for i := range 48 {
		p := pod(fmt.Sprintf("p%d", i), initc("i", little), app("a", little))
		a, err := l.Place(p, "a")
		if err != nil {
			t.Fatalf("pod %d: %v", i, err)
		}
		if !a.Devices[0].MPS {
			t.Fatal("the device is not marked as shared by MPS")
		}
	}
	if left := l.Left(nil); len(left) != 0 {
		t.Errorf("%v is advertised of a GPU that serves no more clients", left)
	}
	_, err := l.Place(pod("late", app("a", little)), "a")
	var none *NoRoomError
	if !errors.As(err, &none) || !strings.Contains(err.Error(), "0 containers as clients of MPS") {
		t.Errorf("the 49th client: %v", err)
	}
	l.Release("p7")
	if _, err := l.Place(pod("late", app("a", little)), "a"); err != nil {
		t.Errorf("the 48th client after one has gone: %v", err)
	}
}

func TestClientsPerContainer(t *testing.T) {
	cfg := byMPS(config.AllGPUs)
	cfg.Sharing.MPS.ClientsPerContainer = 20
	l := New(gpus(16, 16), cfg)
	got := placeAll(l, pod("p", app("a", mem(1)), app("b", mem(1)), app("c", mem(1)), app("d", mem(1)), app("e", mem(1))))
	if got != "no e" {
		t.Errorf("two containers of 20 clients fit a GPU that serves 48, but five were placed as %q", got)
	}
	if got := placeAll(l, pod("p", app("a", mem(1)), app("b", mem(1)), app("c", mem(1)))); got != "a:0 b:0 c:1" {
		t.Errorf("placed as %q", got)
	}
}

func TestMPSAndTimeDoNotMix(t *testing.T) {
	l := New(gpus(16, 16, 16), byMPS("GPU-1"))
	if got := placeAll(l, pod("two", app("a", mem(1), mem(1)))); got != "a:0,2" {
		t.Errorf("a container with two GPUs got %q", got)
	}
	if got := placeAll(l, pod("three", app("a", mem(1), mem(1), mem(1)))); got != "no a" {
		t.Errorf("a container with three GPUs got %q", got)
	}
	l = New(gpus(16, 16, 16), byMPS("GPU-0"))
	for _, uuid := range []string{"GPU-0", "GPU-1", "GPU-2"} {
		half := part(50)
		half.GPUs = []string{uuid}
		placeAll(l, pod("half of "+uuid, app("a", half)))
	}
	divided := part(80)
	divided.SplitPPM = 100_000
	if got := placeAll(l, pod("divided", app("a", divided))); got != "a:1,2" {
		t.Errorf("a container with a divided share got %q", got)
	}
}

func TestMemoryForTheServerIsKept(t *testing.T) {
	l := New(gpus(16, 16), byMPS("GPU-1"))
	if got := placeAll(l, pod("p", app("a", mem(16)), app("b", mem(16)))); got != "no b" {
		t.Errorf("placed as %q on a GPU whose server has 64 MiB", got)
	}
}
