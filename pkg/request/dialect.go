// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"slices"
	"sort"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// These constants are the names of the dialects, as in Container.Dialect.
const (
	DialectNative  = "native"
	DialectAlnair  = "alnair"
	DialectAWS     = "aws"
	DialectVolcano = "volcano"
	DialectHAMi    = "hami"
	DialectMetaGPU = "metagpu"
)

// These constants are the bounds and units of a request.
const (
	// MaxGPUs is the most GPUs that one container may hold, which is the capacity of a limits page.
	MaxGPUs = 16
	// maxMiB is 16 TiB in MiB. maxMiB keeps every product of an amount of
	// memory and parts per million within 64 bits.
	maxMiB = 1 << 24
	// MiB is the unit of memory in the dialects that count GPUs.
	MiB = 1 << 20
	// ppmPerPercent converts percent to parts per million.
	ppmPerPercent = Whole / 100
)

// amounts are the quantities that a container requests of one dialect's
// resources, by resource name.
type amounts map[string]int64

// dialect is a set of extended resources. dialect converts requests to shares,
// and GPUs to capacity.
type dialect interface {
	name() string
	// resources returns the resource names, in the order in which errors name
	// them.
	resources() []string
	// shares returns the shares that a container requests by its amounts, of which at least one
	// amount is not zero. shares returns no shares if the amounts request no GPU.
	shares(amounts) ([]Share, error)
	// worth returns the available amounts of one GPU, by resource. total is the
	// GPU's allocatable memory in bytes; left is its remaining capacity.
	worth(g gpu.GPU, total uint64, left Left) map[string]int64
}

// enabled returns the dialects that the configuration enables.
func enabled(cfg config.Dialects, node config.Node) []dialect {
	var all []dialect
	if cfg.Native.Enabled {
		all = append(all, native{cfg.Native, node.SlotsPerGPU})
	}
	if cfg.Alnair.Enabled {
		all = append(all, alnair{cfg.Alnair})
	}
	if cfg.AWS.Enabled {
		all = append(all, aws{cfg.AWS})
	}
	if cfg.Volcano.Enabled {
		all = append(all, volcano{cfg.Volcano, min(cfg.Volcano.NumberPerGPU, node.SlotsPerGPU)})
	}
	if cfg.HAMi.Enabled {
		all = append(all, hami{cfg.HAMi, min(cfg.HAMi.NumberPerGPU, node.SlotsPerGPU)})
	}
	if cfg.MetaGPU.Enabled {
		all = append(all, metagpu{cfg.MetaGPU})
	}
	return all
}

// between returns the amount of an optional resource, or absent if the
// container does not name it.
func (a amounts) between(resource string, absent, low, high int64, unit string) (int64, error) {
	n, given := a[resource]
	if !given {
		return absent, nil
	}
	if n < low || n > high {
		return 0, fmt.Errorf("%s is %d; allowed: %d to %d (%s)", resource, n, low, high, unit)
	}
	return n, nil
}

// same returns a number of equal shares.
func same(share Share, number int64) []Share {
	return slices.Repeat([]Share{share}, int(number))
}

// parts converts units of 1/perGPU GPU to exclusive whole GPUs and a part of
// one more GPU for the remainder.
func parts(units, perGPU int64) []Share {
	whole := Share{Memory: Memory{PPM: Whole}, ComputePPM: Whole, Exclusive: true}
	shares := same(whole, units/perGPU)
	if rest := units % perGPU; rest > 0 {
		ppm := uint32(rest * Whole / perGPU)
		shares = append(shares, Share{Memory: Memory{PPM: ppm}, ComputePPM: ppm})
	}
	return shares
}

// partsLeft returns the number of free units of 1/perGPU GPU, in memory and in time.
func partsLeft(perGPU int, total uint64, left Left) int64 {
	return most(int64(perGPU), func(n int64) bool {
		ppm := uint32(n * Whole / int64(perGPU))
		return ppm <= left.ComputePPM && Memory{PPM: ppm}.On(total) <= left.Memory
	})
}

// most returns the largest number of units, at most limit, that fits. fits must be monotonic: if n
// units fit, fewer units also fit.
func most(limit int64, fits func(n int64) bool) int64 {
	return int64(sort.Search(int(limit), func(n int) bool { return !fits(int64(n) + 1) }))
}
