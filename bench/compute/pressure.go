// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"os"
	"strings"
	"time"
)

// pressureFile contains the time for which programs have waited for processors.
const pressureFile = "/proc/pressure/cpu"

// pressure is the total time, up to an instant, for which some program has waited for a processor.
// pressure is NaN if the kernel reports no pressure.
type pressure struct {
	at     time.Time
	waited float64 // seconds
}

func readPressure(path string) pressure {
	p := pressure{time.Now(), math.NaN()}
	content, err := os.ReadFile(path)
	if err != nil {
		return p
	}
	for line := range strings.Lines(string(content)) {
		var averages [3]float64
		var total float64
		if _, err := fmt.Sscanf(line, "some avg10=%f avg60=%f avg300=%f total=%f",
			&averages[0], &averages[1], &averages[2], &total); err == nil {
			p.waited = total / 1e6
		}
	}
	return p
}

// since returns the percentage of the time since the instant of then in which some program waited.
func (p pressure) since(then pressure) float64 {
	return 100 * (p.waited - then.waited) / p.at.Sub(then.at).Seconds()
}
