package main

import (
	"fmt"
	"math"
	"os"
	"strings"
	"time"
)

// pressureFile tells for how long programs have waited for processors.
const pressureFile = "/proc/pressure/cpu"

// pressure is how long some program had waited for a processor up to an
// instant, NaN where the kernel does not tell.
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

// since is the percentage of the time since then.
func (p pressure) since(then pressure) float64 {
	return 100 * (p.waited - then.waited) / p.at.Sub(then.at).Seconds()
}
