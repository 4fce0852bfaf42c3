// SPDX-License-Identifier: Apache-2.0

package request

import "fmt"

// counting are the resources of a dialect that counts GPUs: the number of GPUs, and their memory and
// time.
type counting struct {
	number, memory, percentage, cores string // resource names
	// unit is the number of MiB in a unit of memory.
	unit int64
	// total reports whether memory and time are amounts of all GPUs of a container together. Otherwise
	// they are amounts of each GPU.
	total bool
}

// counted are the amounts of a request in a dialect that counts GPUs. An amount of 0 is omitted.
type counted struct {
	number              int64
	mib, percent, cores int64
	// parts is the number of GPUs that the amounts are divided by.
	parts int64
}

func (c counting) resources() []string { return []string{c.number, c.memory, c.percentage, c.cores} }

// read reads the amounts of a container. number is the number of GPUs of a container that names
// none. least is the least valid amount of memory and time. 0 is valid in dialects in which a zero is
// equivalent to omitting the resource.
func (c counting) read(a amounts, number, least int64) (counted, error) {
	number, err := a.between(c.number, number, 1, MaxGPUs, "GPUs")
	if err != nil {
		return counted{}, err
	}
	r, of, mib := counted{number: number, parts: 1}, "of each GPU", "MiB"
	if c.total {
		r.parts, of = number, "of all GPUs together"
	}
	if c.unit > 1 {
		mib = fmt.Sprintf("units of %d MiB", c.unit)
	}
	for _, one := range []struct {
		into     *int64
		resource string
		high     int64 // of each GPU
		unit     string
	}{
		{&r.mib, c.memory, maxMiB / c.unit, mib},
		{&r.percent, c.percentage, 100, "percent of the memory"},
		{&r.cores, c.cores, 100, "percent of the time"},
	} {
		if *one.into, err = a.between(one.resource, 0, least, one.high*r.parts, one.unit+" "+of); err != nil {
			return counted{}, err
		}
	}
	r.mib *= c.unit
	return r, nil
}

// memoryOr returns the requested memory of each GPU, or otherwise if the request names no memory.
// Memory in MiB overrides memory in percent.
func (r counted) memoryOr(otherwise Memory) Memory {
	switch {
	case r.mib > 0:
		return Memory{Bytes: uint64(r.mib) * MiB / uint64(r.parts)}
	case r.percent > 0:
		return Memory{PPM: r.ppm(r.percent)}
	default:
		return otherwise
	}
}

// percentOf returns an amount of memory in percent of a GPU.
func percentOf(percent int64) Memory { return Memory{PPM: uint32(percent) * ppmPerPercent} }

// ppm returns the part of each GPU that an amount in percent is, in parts per million.
func (r counted) ppm(percent int64) uint32 { return uint32(percent * ppmPerPercent / r.parts) }

// shares returns equal shares of the requested number of GPUs.
func (r counted) shares(memory Memory, exclusive bool) []Share {
	share := Share{Memory: memory, ComputePPM: r.ppm(r.cores), Slots: 1, Exclusive: exclusive}
	return same(share, r.number)
}

// worth returns the available amounts of one GPU that slotsPerGPU containers may share. A dialect may
// request a GPU exclusively by 100 percent of its time. worth then offers at most 99 percent of the
// time of a GPU that is in use.
func (c counting) worth(slotsPerGPU int, exclusive bool, total uint64, left Left) map[string]int64 {
	slots, mib := left.counted(slotsPerGPU)
	if slots == 0 {
		return nil
	}
	cores := left.percent()
	if exclusive && left.Held {
		cores = min(cores, 99)
	}
	return map[string]int64{
		c.number:     slots,
		c.memory:     mib / c.unit,
		c.percentage: most(100, func(n int64) bool { return percentOf(n).On(total) <= left.Memory }),
		c.cores:      cores,
	}
}
