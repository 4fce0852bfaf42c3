// SPDX-License-Identifier: Apache-2.0

// Command localcluster starts and takes down real single-node Kubernetes clusters on this machine.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
)

func main() {
	cluster.Supervise()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "localcluster:", err)
		os.Exit(1)
	}
}
