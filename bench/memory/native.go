// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// unlimited runs programs without a limit.
type unlimited struct{}

func (unlimited) name() string { return "none" }

func (unlimited) command(_ uint64, _, program string, args []string) (argv, env []string) {
	return append([]string{program}, args...), nil
}

// Absent is a way that a driver does not have. The runner measures no point for an absent way.
type Absent struct {
	Way     string `json:"absent"`
	Profile string `json:"profile"`
	Call    string `json:"call"` // the missing function
}

// measureNative measures the memory that each way can allocate without a limit.
// measureNative also finds the ways that the driver does not have.
func (r *runner) measureNative(ctx context.Context, ways []string) error {
	r.native = sizes{pieces: map[string]uint64{}, reach: map[string]uint64{}, vague: r.profile.vague}
	r.absent = nil
	for _, way := range ways {
		fill, context, err := r.fillNative(ctx, way)
		if err != nil {
			return fmt.Errorf("measure %s without a limit: %w", way, err)
		}
		if fill.Error == notFound {
			r.absent = append(r.absent, Absent{way, r.profile.name, fill.Call})
			continue
		}
		if fill.whole() {
			r.native.pieces[way] = fill.Granted / max(fill.Pieces, 1)
		}
		if way == exactWay {
			r.native.context = context
		}
		r.native.reach[way] = fill.Granted
	}
	if r.has(exactWay) {
		return nil
	}
	return fmt.Errorf("measure contexts without a limit: the driver lacks the necessary way %s", exactWay)
}

// has reports whether the driver has a way, according to measureNative.
func (r *runner) has(way string) bool {
	return !slices.ContainsFunc(r.absent, func(a Absent) bool { return a.Way == way })
}

// those returns the ways that the driver supports.
func (r *runner) those(ways []string) []string {
	return slices.DeleteFunc(slices.Clone(ways), func(way string) bool { return !r.has(way) })
}

// exactWay is a way that allocates exactly the requested size. If the machine does not report the
// size of contexts, a context is the rest of the memory that a process holds.
const exactWay = "alloc"

// fillNative fills the GPU by one way, and returns the size of a context.
func (r *runner) fillNative(ctx context.Context, way string) (_ Fill, size uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := r.prepare()
	if err != nil {
		return Fill{}, 0, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	c, err := r.fillAll(ctx, s, unlimited{}, step{way: way, tasks: []task{alone(way)}})
	defer c.end()
	if err != nil {
		return Fill{}, 0, err
	}
	fill := c.fills[0]
	if !fill.Context {
		return Fill{}, 0, fmt.Errorf("error %d: %s", fill.Error, fill.Message)
	}
	size, err = contextSize(s, fill.Granted)
	return fill, size, err
}

// contextSize returns the size of a context that the machine reports. If the machine does not
// report the size, contextSize returns the held memory less the granted memory.
func contextSize(m machine, granted uint64) (uint64, error) {
	bytes, count, known, err := m.contexts()
	if err != nil || (known && count > 0) {
		return bytes / uint64(max(count, 1)), err
	}
	held, err := m.held()
	return held - min(held, granted), err
}

// whole reports whether the driver chose the size of the pieces.
func (f Fill) whole() bool { return f.Refusals > 0 && f.Refused == 0 }
