// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// recoveryChanged is the XID that reports a new recovery action.
const recoveryChanged = 154

// meanings describe common XIDs, for the reason shown to operators.
var meanings = map[uint64]string{
	48:  "memory error that could not be corrected",
	62:  "internal controller halted",
	64:  "a memory row could not be remapped",
	74:  "NVLink error",
	79:  "the GPU has fallen off the bus",
	95:  "memory error that was not contained",
	119: "the GPU's system processor does not answer",
	120: "the GPU's system processor failed",
	140: "memory error that could not be recovered from",
}

// XID is an error number of the driver on one GPU.
type XID struct {
	// UUID is the physical GPU. UUID is empty if the driver does not report the GPU: the XID then
	// applies to all GPUs.
	UUID   string
	Number uint64
	// Instance is the GPU instance that has the error, the id plus 1. If Instance is 0, the XID
	// applies to the whole GPU.
	Instance int
}

// concerns reports whether an XID applies to a GPU or MIG device.
func (x XID) concerns(g GPU) bool {
	if x.UUID != "" && x.UUID != g.Card() {
		return false
	}
	return x.Instance == 0 || g.MIG == (MIG{}) || g.MIG.Instance == x.Instance-1
}

// settle is the time for which judge keeps a fault although the driver requests no recovery. The
// driver may request a recovery some time after it reports the XID.
const settle = 10 * time.Second

// fault is an XID that made a GPU unhealthy.
type fault struct {
	number uint64
	at     time.Time
	// down reports whether the driver has since omitted the GPU or requested its recovery.
	down bool
	// instance reports whether the fault concerns a GPU instance, and not the whole card.
	instance bool
}

func (f *fault) String() string {
	if meaning, ok := meanings[f.number]; ok {
		return fmt.Sprintf("XID %d, %s", f.number, meaning)
	}
	return fmt.Sprintf("XID %d", f.number)
}

// judge marks GPUs with reported faults as unhealthy. judge drops a fault when
// the driver reports a recovery: the driver lists an omitted GPU again, or
// requests no recovery of the GPU. judge also drops the fault of a destroyed GPU instance. A change
// of the MIG mode resets the GPU, so judge then drops the fault as well. A MIG device keeps the fault of its card.
func judge(gpus []GPU, faults map[string]*fault, now time.Time) []GPU {
	for k := range gpus {
		g := &gpus[k]
		f, ok := faults[g.UUID]
		switch {
		case !ok:
		case !g.Healthy:
			f.down = true
			g.Reason = fmt.Sprintf("%s, after %s", g.Reason, f)
		case f.down, g.RecoveryKnown && now.Sub(f.at) >= settle:
			delete(faults, g.UUID)
		case g.RecoveryKnown:
			g.Healthy, g.Reason = false, f.String()
		default:
			g.Healthy, g.Reason = false, fmt.Sprintf("%s: reset the GPU (nvidia-smi --gpu-reset) or reboot the node, and restart the agent", f)
		}
	}
	maps.DeleteFunc(faults, func(uuid string, f *fault) bool {
		return (f.instance || !IsMIG(uuid)) && !slices.ContainsFunc(gpus, func(g GPU) bool { return g.UUID == uuid })
	})
	return gpus
}

// report records an XID and reports whether the XID made a GPU unhealthy.
func (i *Inventory) report(x XID, ignored func(uint64) bool, now time.Time) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.xids[XID{UUID: x.UUID, Number: x.Number}]++
	if ignored(x.Number) {
		return false
	}
	for k := range i.gpus {
		g := &i.gpus[k]
		if !x.concerns(*g) {
			continue
		}
		f := &fault{number: x.Number, at: now, instance: x.Instance != 0 && g.MIG != (MIG{})}
		if old, ok := i.faults[g.UUID]; ok {
			f.down, f.instance = old.down, f.instance && old.instance
		}
		i.faults[g.UUID] = f
		if g.Healthy {
			g.Healthy, g.Reason = false, f.String()
		}
	}
	return true
}

// XIDs returns the count of each XID of each physical GPU since the start.
func (i *Inventory) XIDs() map[XID]uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	counts := make(map[XID]uint64, len(i.xids))
	for x, n := range i.xids {
		counts[x] = n
	}
	return counts
}
