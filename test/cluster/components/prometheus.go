package components

import (
	"context"
	"io"
	"time"
)

// Prometheus is the server that a test has scrape what we serve; without its ways
// of finding what to scrape, which would take half of the time to build.
func Prometheus() Module {
	return Module{
		Name:       "prometheus",
		Programs:   []Program{{"prometheus", "github.com/prometheus/prometheus/cmd/prometheus"}},
		Tags:       "remove_all_sd",
		FirstBuild: 150 * time.Second,
	}
}

// PrometheusProgram is the server, built if need be.
func PrometheusProgram(ctx context.Context, root string, out io.Writer) (string, error) {
	binaries, err := (&Builder{Root: root, Out: out}).Build(ctx, []Module{Prometheus()})
	return binaries["prometheus"], err
}
