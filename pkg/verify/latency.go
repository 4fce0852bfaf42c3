package verify

import (
	"context"
	"time"
)

// latencyCores is the limit on GPU time of the tenant that waits and of its neighbour.
const latencyCores = 50

// latencyRounds is how often latencies are measured: a host that stands still for a moment
// spoils a round, while what limits add is in each.
const latencyRounds = 3

// latency measures a short kernel that is launched now and then beside a tenant that
// saturates the GPU, without limits and under them in turn, and judges the best rounds.
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
