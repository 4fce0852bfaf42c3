// SPDX-License-Identifier: Apache-2.0

package components

import (
	"context"
	"io"
	"time"
)

// Prometheus returns the server that scrapes our metrics in a test. The server lacks service
// discovery, which would take half of the build time.
func Prometheus() Module {
	return Module{
		Name:       "prometheus",
		Programs:   []Program{{"prometheus", "github.com/prometheus/prometheus/cmd/prometheus"}},
		Tags:       "remove_all_sd",
		FirstBuild: 150 * time.Second,
	}
}

// PrometheusProgram returns the path of the server, and builds the server if needed.
func PrometheusProgram(ctx context.Context, root string, out io.Writer) (string, error) {
	binaries, err := (&Builder{Root: root, Out: out}).Build(ctx, []Module{Prometheus()})
	return binaries["prometheus"], err
}
