// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/contexts"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// Contexts contains the measured sizes of CUDA contexts, or the error of reading the sizes.
type Contexts struct {
	Sizes []contexts.Size
	Err   error
}

func seeContexts(stateDir string) Contexts {
	sizes, err := contexts.ReadFile(paths.Contexts(stateDir))
	return Contexts{Sizes: sizes, Err: err}
}

// checkContexts checks that the size of a CUDA context is known for each GPU.
func checkContexts(f Facts) []finding.Finding {
	const fix = "kubectl -n nri-vgpu-system logs daemonset/nri-vgpu | grep context; or set memory.context_mib in config.toml"
	switch {
	case f.Config.Memory.ContextMiB > 0:
		return ok("a CUDA context takes %d MiB, by memory.context_mib", f.Config.Memory.ContextMiB)
	case f.Contexts.Err != nil:
		return []finding.Finding{found(finding.Warning, fix, "the sizes of CUDA contexts are unreadable: %v", f.Contexts.Err)}
	case len(f.Report.GPUs) == 0:
		return nil // unknown
	}
	known := map[string]contexts.Size{}
	for _, size := range f.Contexts.Sizes {
		known[size.UUID] = size
	}
	var all []finding.Finding
	var sizes []string
	for _, g := range f.Report.GPUs {
		size, measured := known[g.UUID]
		if !measured {
			all = append(all, found(finding.Warning, fix, "GPU %s (%s): the agent could not measure the size of a CUDA context, and charges %d MiB for each context", g.Number(), g.UUID, limits.UnknownContextBytes>>20))
			continue
		}
		sizes = append(sizes, fmt.Sprintf("%d MiB on GPU %s (driver %s)", size.Bytes>>20, g.Number(), size.Driver))
	}
	if len(sizes) > 0 {
		all = append(all, ok("a CUDA context takes %s", strings.Join(sizes, ", "))...)
	}
	return all
}
