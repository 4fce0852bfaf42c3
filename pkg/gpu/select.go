// SPDX-License-Identifier: Apache-2.0

package gpu

import "slices"

// Selection decides which of the node's GPUs containers may get. The functions must not block.
type Selection struct {
	// Offers reports whether the node offers a GPU. nil offers every GPU.
	Offers func(GPU) bool
	// Claimed returns the reason why another program offers a GPU, "" if no other program does. nil
	// means that no program does.
	Claimed func(GPU) string
}

// Select sets the selection. Call Select before the first Refresh.
func (i *Inventory) Select(s Selection) { i.selection = s }

// LeftOut returns the GPUs that the driver lists and that the node does not offer. The configuration
// leaves them out, or they are in MIG mode without MIG devices.
func (i *Inventory) LeftOut() []GPU {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.leftOut)
}

// Foreign reports whether a GPU belongs to other programs: the node does not offer the GPU, or
// another program offers the GPU, too.
func (i *Inventory) Foreign(uuid string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	is := func(g GPU) bool { return g.UUID == uuid }
	k := slices.IndexFunc(i.gpus, is)
	return k >= 0 && i.gpus[k].Foreign || slices.ContainsFunc(i.leftOut, is)
}

// offered returns the offered GPUs of a list, and records the others. A lost GPU without a UUID
// counts as offered: merge drops the GPU unless the node offered a GPU with its index.
func (i *Inventory) offered(seen []GPU) []GPU {
	i.leftOut = nil
	var offered []GPU
	for _, g := range seen {
		if g.UUID == "" || !g.Undivided && i.offers(g) {
			offered = append(offered, g)
		} else {
			i.leftOut = append(i.leftOut, g)
		}
	}
	return offered
}

func (i *Inventory) offers(g GPU) bool {
	return i.selection.Offers == nil || i.selection.Offers(g)
}

// withhold makes the GPUs unhealthy that another program offers, too: two programs must not give
// one GPU to different containers.
func (i *Inventory) withhold(gpus []GPU) []GPU {
	for k := range gpus {
		gpus[k].Foreign = false
		if i.selection.Claimed == nil {
			continue
		}
		if reason := i.selection.Claimed(gpus[k]); reason != "" {
			gpus[k].Healthy, gpus[k].Reason, gpus[k].Foreign = false, reason, true
		}
	}
	return gpus
}
