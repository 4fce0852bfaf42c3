// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"
)

// fill is the report of the workload "fill".
type fill struct {
	Granted  uint64 `json:"granted_bytes"`
	Pieces   uint64 `json:"pieces"`
	Refusals uint64 `json:"refusals"`
	Smallest uint64 `json:"smallest_refused_bytes"`
	failure
}

// memoryLimit returns the limit for the ways of allocating: 4 GiB, or less on a small
// card.
func (s start) memoryLimit() uint64 {
	const most, mib = 4 << 30, 1 << 20
	return min(most, s.TotalBytes/2/mib*mib)
}

// memory fills the GPU up to the limit by one way of allocating. memory compares the
// limit with the process's count and with NVML's count.
func (v *run) memory(ctx context.Context, way string) Row {
	limit := v.start.memoryLimit()
	if limit < 3*v.start.context() {
		return skipped("the GPU is too small")
	}
	free, _, err := v.fill(ctx, hold{}, way, limit)
	if err != nil {
		return skipped("without limits: %v", err)
	}
	if free.Code != 0 && free.Code != outOfMemory {
		return skipped("without limits, %v", &free.failure)
	}
	got, held, err := v.fill(ctx, hold{memory: limit}, way, 2*limit)
	if err != nil {
		return broken(err)
	}
	f := filled{
		limit: limit, granted: got.Granted, context: v.start.context(), held: held, err: got.Code,
		vague: v.start.regime() == regimeNone || v.start.regime() == regimeAbsent,
		short: float64(free.Granted+v.start.context()) < (1-tolerance)*float64(limit),
	}
	if got.Refusals > 0 && got.Smallest == 0 && free.Pieces > 0 {
		f.piece = free.Granted / free.Pieces
	}
	return row(judgeMemory(f))
}

// fill allocates at most most bytes. fill returns the workload's report, and the
// increase of used GPU memory that NVML reports.
func (v *run) fill(ctx context.Context, h hold, way string, most uint64) (fill, uint64, error) {
	before, err := v.usedBefore(ctx)
	if err != nil {
		return fill{}, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	cmd := v.command(ctx, h, "fill", "--way", way, "--max", strconv.FormatUint(most, 10), "--hold", "3600")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fill{}, 0, err
	}
	if err := cmd.Start(); err != nil {
		return fill{}, 0, err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var f fill
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return f, 0, errHangs
	}
	if err := errors.Join(err, json.Unmarshal(line, &f)); err != nil {
		return f, 0, errors.New(lastLine(errs.String(), err))
	}
	if f.Message != "" {
		return f, 0, &f.failure
	}
	after, err := v.used(ctx)
	if err != nil {
		return f, 0, err
	}
	return f, max(after, before) - before, nil
}

// usedBefore returns the used GPU memory before the first fill, including this program's
// context. A process that has ended uses no memory.
func (v *run) usedBefore(ctx context.Context) (uint64, error) {
	if v.base == nil {
		used, err := v.used(ctx)
		if err != nil {
			return 0, err
		}
		v.base = &used
	}
	return *v.base, nil
}
