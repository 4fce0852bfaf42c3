// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
)

// Main is the TestMain of a package with a separate cluster. up makes the cluster and sets bed.
// Main runs the tests, takes the cluster down and ends the process. The cluster's logs stay if a
// test fails. name begins each message.
func Main(m *testing.M, name string, bed **Bed, up func(context.Context) error) {
	cluster.Supervise()
	flag.Parse()
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run()) // runs no test
	}
	code := 1
	if err := up(context.Background()); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	} else {
		code = m.Run()
	}
	if *bed != nil {
		if err := (*bed).Down(code != 0); err != nil {
			fmt.Fprintf(os.Stderr, "%s: the cluster cannot be taken down: %v\n", name, err)
			code = 1
		}
	}
	os.Exit(code)
}
