package request

import (
	"fmt"
	"slices"
	"sort"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// Names of the dialects, as Container.Dialect has them.
const (
	DialectNative  = "native"
	DialectAlnair  = "alnair"
	DialectAWS     = "aws"
	DialectVolcano = "volcano"
	DialectMetaGPU = "metagpu"
)

// Bounds of a request.
const (
	// MaxGPUs is how many GPUs one container may hold: what a limits page
	// has room for.
	MaxGPUs = 16
	// maxMiB is 16 TiB, which keeps every product of an amount of memory and
	// parts per million within 64 bits.
	maxMiB = 1 << 24
	// MiB is the unit of memory in our own dialect and in Volcano's.
	MiB = 1 << 20
	// ppmPerPercent turns percent into parts per million.
	ppmPerPercent = Whole / 100
)

// amounts are the quantities of one dialect's resources that a container
// names, by resource name.
type amounts map[string]int64

// dialect is one language: its words, what they ask for and what GPUs are
// worth in them.
type dialect interface {
	name() string
	// resources are the words, in the order in which errors name them.
	resources() []string
	// shares is what a container asks for. At least one amount is not zero.
	shares(amounts) ([]Share, error)
	// worth is what can be had of one GPU, by resource. total is what of its
	// memory may be given away in all, in bytes; left is what nobody has.
	worth(g gpu.GPU, total uint64, left Left) map[string]int64
}

// enabled lists the dialects that the configuration offers.
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
	if cfg.MetaGPU.Enabled {
		all = append(all, metagpu{cfg.MetaGPU})
	}
	return all
}

// between reads a resource that may be left out: absent is returned then.
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

// same is number equal shares.
func same(share Share, number int64) []Share {
	return slices.Repeat([]Share{share}, int(number))
}

// parts divides units of 1/perGPU GPU into whole GPUs, which nobody else may
// be on, and the rest on one more.
func parts(units, perGPU int64) []Share {
	whole := Share{Memory: Memory{PPM: Whole}, ComputePPM: Whole, Exclusive: true}
	shares := same(whole, units/perGPU)
	if rest := units % perGPU; rest > 0 {
		ppm := uint32(rest * Whole / perGPU)
		shares = append(shares, Share{Memory: Memory{PPM: ppm}, ComputePPM: ppm})
	}
	return shares
}

// partsLeft is how many units of 1/perGPU GPU, in memory and time, are left.
func partsLeft(perGPU int, total uint64, left Left) int64 {
	return most(int64(perGPU), func(n int64) bool {
		ppm := uint32(n * Whole / int64(perGPU))
		return ppm <= left.ComputePPM && Memory{PPM: ppm}.On(total) <= left.Memory
	})
}

// most is the largest number of units, at most limit, that fit. Where n fit,
// fewer do.
func most(limit int64, fits func(n int64) bool) int64 {
	return int64(sort.Search(int(limit), func(n int) bool { return !fits(int64(n) + 1) }))
}
