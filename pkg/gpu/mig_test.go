// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestXIDsOfMIGDevices(t *testing.T) {
	whole := GPU{UUID: "GPU-a"}
	device := func(card string, instance int) GPU {
		return GPU{UUID: "MIG-x", MIG: MIG{Parent: card, Instance: instance}}
	}
	for name, c := range map[string]struct {
		xid  XID
		gpu  GPU
		want bool
	}{
		"of the whole GPU":              {XID{UUID: "GPU-a", Number: 79}, device("GPU-a", 1), true},
		"of its GPU instance":           {XID{UUID: "GPU-a", Number: 31, Instance: 2}, device("GPU-a", 1), true},
		"of another GPU instance":       {XID{UUID: "GPU-a", Number: 31, Instance: 3}, device("GPU-a", 1), false},
		"of another GPU":                {XID{UUID: "GPU-b", Number: 79}, device("GPU-a", 1), false},
		"of an unknown GPU":             {XID{Number: 79}, device("GPU-a", 1), true},
		"of a GPU without MIG devices":  {XID{UUID: "GPU-a", Number: 79}, whole, true},
		"of an instance, and no device": {XID{UUID: "GPU-a", Number: 31, Instance: 2}, whole, true},
	} {
		if got := c.xid.concerns(c.gpu); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestMergeOfMIGDevices checks which MIG devices stay when the driver lists other devices. GPU-a has
// MIG devices, and GPU-b is whole.
func TestMergeOfMIGDevices(t *testing.T) {
	device := func(uuid string, index int) GPU {
		return GPU{UUID: uuid, Healthy: true, MIG: MIG{Parent: "GPU-a", Index: index}}
	}
	ill := func(g GPU, reason string) GPU { g.Healthy, g.Reason = false, reason; return g }
	first, second, whole := device("MIG-1", 1), device("MIG-2", 2), GPU{UUID: "GPU-b", Index: 1, Healthy: true}
	card := GPU{UUID: "GPU-a", Healthy: true}
	empty := card
	empty.Undivided = true
	known := []GPU{second, whole, first} // merge orders the devices
	const gone = "the driver no longer lists this GPU"
	for name, c := range map[string]struct{ known, seen, want []GPU }{
		"the card is lost":     {known, []GPU{{Reason: "lost"}, whole}, []GPU{ill(first, "lost"), ill(second, "lost"), whole}},
		"the card is missing":  {known, []GPU{whole}, []GPU{ill(first, gone), ill(second, gone), whole}},
		"one is destroyed":     {known, []GPU{second, whole}, []GPU{second, whole}},
		"all are destroyed":    {known, []GPU{empty, whole}, []GPU{whole}},
		"MIG mode is off":      {known, []GPU{card, whole}, []GPU{card, whole}},
		"the card is unknown":  {known, []GPU{ill(card, "x"), whole}, []GPU{ill(card, "x"), ill(first, gone), ill(second, gone), whole}},
		"MIG mode is on":       {[]GPU{card}, []GPU{first}, []GPU{first}},
		"MIG mode, no devices": {[]GPU{card}, []GPU{empty}, []GPU{}},
	} {
		t.Run(name, func(t *testing.T) {
			inv := NewInventory(nil, 0)
			if diff := cmp.Diff(c.want, merge(c.known, inv.offered(c.seen), c.seen)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestFaultsOfDestroyedMIGDevices checks that a MIG device with the UUID of a destroyed device has no
// fault, unless the fault concerns the card. The driver derives the UUID from the ids of the instances.
func TestFaultsOfDestroyedMIGDevices(t *testing.T) {
	device := GPU{UUID: "MIG-1", Healthy: true, MIG: MIG{Parent: "GPU-a", Instance: 1}}
	card := GPU{UUID: "GPU-a", Healthy: true}
	for name, c := range map[string]struct {
		gpu     GPU
		xid     XID
		healthy bool
	}{
		"an instance":              {device, XID{UUID: "GPU-a", Number: 31, Instance: 2}, true},
		"the card":                 {device, XID{UUID: "GPU-a", Number: 48}, false},
		"the card and an instance": {device, XID{UUID: "GPU-a", Number: 48}, false},
		"a GPU in another mode":    {card, XID{UUID: "GPU-a", Number: 48}, true},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			inv := NewInventory(nil, 0)
			list := func(gpus ...GPU) []GPU {
				return inv.update(func([]GPU) []GPU { return judge(gpus, inv.faults, now) })
			}
			list(c.gpu)
			inv.report(c.xid, func(uint64) bool { return false }, now)
			if name == "the card and an instance" {
				inv.report(XID{UUID: "GPU-a", Number: 31, Instance: 2}, func(uint64) bool { return false }, now)
			}
			if got := list(c.gpu)[0]; got.Healthy {
				t.Fatal("the fault is ignored")
			}
			list() // destroyed
			if got := list(c.gpu)[0]; got.Healthy != c.healthy {
				t.Errorf("the new device is %+v", got)
			}
		})
	}
}

func TestNumbersAndProfiles(t *testing.T) {
	for want, g := range map[[2]string]GPU{
		{"3", ""}:          {Index: 3, Name: "NVIDIA H100"},
		{"3:1", "1g.10gb"}: {Index: 3, Name: "NVIDIA H100 MIG 1g.10gb", MIG: MIG{Parent: "GPU-a", Index: 1}},
	} {
		if got := [2]string{g.Number(), g.Profile()}; got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}
