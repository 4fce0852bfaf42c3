// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Never returns the reason why none of the nodes can ever start the pod, even without other
// containers. The parameter nodes contains the GPUs of each node. Never returns "" if a node can
// start the pod.
func Never(asked request.Pod, nodes [][]placement.Room) string {
	if len(nodes) == 0 {
		return ""
	}
	for _, c := range asked.Containers {
		if !c.Asks() {
			continue
		}
		fits := func(rooms []placement.Room) bool { return fitsEmptied(c, rooms) }
		if !slices.ContainsFunc(nodes, fits) {
			return neverFor(c, nodes)
		}
	}
	return ""
}

// fitsEmptied reports whether a node without other containers has enough GPUs for the container.
func fitsEmptied(c request.Container, rooms []placement.Room) bool {
	for _, s := range c.Shares {
		if s.SplitPPM == 0 && suitable(c, s, rooms) < len(c.Shares) {
			return false
		}
	}
	return true
}

// suitable returns how many GPUs have room for a share of a container once no container holds a part
// of them.
func suitable(c request.Container, s request.Share, rooms []placement.Room) (n int) {
	for _, r := range rooms {
		if r.Emptied().Lacks(s, len(c.Shares)) == "" {
			n++
		}
	}
	return n
}

func neverFor(c request.Container, nodes [][]placement.Room) string {
	most, gpus := uint64(0), 0
	for _, rooms := range nodes {
		for _, s := range c.Shares {
			gpus = max(gpus, suitable(c, s, rooms))
		}
		for _, r := range rooms {
			most = max(most, r.MemoryBytes)
		}
	}
	asks := fmt.Sprintf("container %s requests %s", c.Name, placement.Describe(c.Shares[0]))
	switch need := c.Shares[0].Memory; {
	case gpus > 0:
		return fmt.Sprintf("%s, on %d GPUs at once, and the largest number of such GPUs on a node is %d", asks, len(c.Shares), gpus)
	case need.On(most) > most:
		return fmt.Sprintf("%s, and no GPU is that large: the largest has %d MiB to allocate", asks, most/request.MiB)
	}
	return asks + ", and no GPU is suitable, even without other containers"
}
