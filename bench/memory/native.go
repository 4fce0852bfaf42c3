package main

import (
	"context"
	"errors"
	"fmt"
)

// unlimited runs programs as they are.
type unlimited struct{}

func (unlimited) name() string { return "none" }

func (unlimited) command(_ uint64, _, program string, args []string) (argv, env []string) {
	return append([]string{program}, args...), nil
}

// measureNative finds what the driver gives by each way with no limit.
func (r *runner) measureNative(ctx context.Context, ways []string) error {
	r.native = sizes{pieces: map[string]uint64{}, reach: map[string]uint64{}}
	for _, way := range ways {
		fill, held, err := r.fillNative(ctx, way)
		if err != nil {
			return fmt.Errorf("measure %s without a limit: %w", way, err)
		}
		if fill.whole() {
			r.native.pieces[way] = fill.Granted / max(fill.Pieces, 1)
		}
		if way == exactWay {
			r.native.context = held - min(held, fill.Granted)
		}
		r.native.reach[way] = fill.Granted
	}
	return nil
}

// exactWay is granted what it asks for, to 512 bytes: what a process holds
// besides is its context.
const exactWay = "alloc"

// fillNative fills the GPU by one way, and returns what the process holds.
func (r *runner) fillNative(ctx context.Context, way string) (_ Fill, held uint64, err error) {
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
	held, err = s.held()
	return fill, held, err
}

// whole tells whether the pieces had a size that the driver chose.
func (f Fill) whole() bool { return f.Refusals > 0 && f.Refused == 0 }
