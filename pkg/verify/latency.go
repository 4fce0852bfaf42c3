package verify

import (
	"context"
	"time"
)

// latencyCores is the limit on GPU time of the tenant that waits and of its neighbour.
const latencyCores = 50

// latency measures a short kernel that is launched now and then beside a tenant that
// saturates the GPU, without limits and under them.
func (v *run) latency(ctx context.Context) Row {
	native, err := v.wait(ctx, hold{})
	if err != nil {
		return skipped("without limits: %v", err)
	}
	limited, err := v.wait(ctx, hold{cores: latencyCores})
	if err != nil {
		return broken(err)
	}
	return row(judgeLatency(native, limited))
}

func (v *run) wait(ctx context.Context, h hold) (waiting, error) {
	measure := 4 * v.measure() // 50 launches a second
	var w waiting
	stop, err := v.beside(ctx, h, "spin", "--kernel-us", "200", "--duration", "3600")
	if err != nil {
		return w, err
	}
	defer stop()
	time.Sleep(v.settle())
	return w, v.run(ctx, measure, h, &w, "latency", "--kernel-us", "1000", "--period-ms", "20", "--duration", seconds(measure))
}
