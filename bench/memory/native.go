package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// unlimited runs programs as they are.
type unlimited struct{}

func (unlimited) name() string { return "none" }

func (unlimited) command(_ uint64, _, program string, args []string) (argv, env []string) {
	return append([]string{program}, args...), nil
}

// Absent is a way that a driver does not have. Nothing is measured by it.
type Absent struct {
	Way     string `json:"absent"`
	Profile string `json:"profile"`
	Call    string `json:"call"` // the function that is missing
}

// measureNative finds what the driver gives by each way with no limit, and which ways
// it does not have.
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
	return fmt.Errorf("measure without a limit: the driver does not have %s, with which contexts are measured", exactWay)
}

// has reports whether the driver has a way, once measureNative has asked for it.
func (r *runner) has(way string) bool {
	return !slices.ContainsFunc(r.absent, func(a Absent) bool { return a.Way == way })
}

// those returns the ways that the driver has.
func (r *runner) those(ways []string) []string {
	return slices.DeleteFunc(slices.Clone(ways), func(way string) bool { return !r.has(way) })
}

// exactWay is granted what it asks for: where the machine does not say what a
// context takes, it is what a process holds besides.
const exactWay = "alloc"

// fillNative fills the GPU by one way, and returns what a context takes.
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

// contextSize is that of a process's contexts, as the machine says or, where it does
// not, what is held beside what was granted.
func contextSize(m machine, granted uint64) (uint64, error) {
	bytes, count, known, err := m.contexts()
	if err != nil || (known && count > 0) {
		return bytes / uint64(max(count, 1)), err
	}
	held, err := m.held()
	return held - min(held, granted), err
}

// whole tells whether the pieces had a size that the driver chose.
func (f Fill) whole() bool { return f.Refusals > 0 && f.Refused == 0 }
