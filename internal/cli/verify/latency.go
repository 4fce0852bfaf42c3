// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"time"
)

// latencyCores is the limit on GPU time of the measured tenant and of its neighbour, in
// percent.
const latencyCores = 50

// latencyRounds is the number of measurements. A stalled host spoils a single round, whereas the
// delay of limits appears in all rounds.
const latencyRounds = 3

// latency measures a periodic short kernel beside a tenant that saturates the GPU. Rounds without
// and with limits alternate; latency judges the best rounds.
func (v *run) latency(ctx context.Context) Row {
	var native, limited waiting
	for i := range latencyRounds {
		free, err := v.wait(ctx, hold{})
		if err != nil {
			return skipped("without limits: %v", err)
		}
		held, err := v.wait(ctx, hold{cores: latencyCores})
		if err != nil {
			return broken(err)
		}
		if i == 0 || free.P99 < native.P99 {
			native = free
		}
		if i == 0 || held.P99 < limited.P99 {
			limited = held
		}
	}
	return row(judgeLatency(native, limited))
}

// wait measures one round.
func (v *run) wait(ctx context.Context, h hold) (waiting, error) {
	measure := 4 * v.measure() / latencyRounds // 50 launches a second
	var w waiting
	stop, err := v.beside(ctx, h, "spin", "--kernel-us", "200", "--duration", "3600")
	if err != nil {
		return w, err
	}
	defer stop()
	time.Sleep(v.settle())
	return w, v.run(ctx, measure, h, &w, "latency", "--kernel-us", "1000", "--period-ms", "20",
		"--warmup", "0.5", "--duration", seconds(measure))
}
