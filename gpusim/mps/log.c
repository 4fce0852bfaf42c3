// SPDX-License-Identifier: Apache-2.0
/* This file handles the directories of the daemon's pipes and logs, and writing to a log. */
#include "program.h"

#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

const char *mps_pipes(void)
{
	const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");

	return dir && *dir ? dir : GS_MPS_DEFAULT_PIPES;
}

const char *mps_logs(void)
{
	const char *dir = getenv("CUDA_MPS_LOG_DIRECTORY");

	return dir && *dir ? dir : GS_MPS_DEFAULT_LOGS;
}

void write_log(const char *dir, const char *who, const char *format, ...)
{
	char path[160], now[32];
	time_t seconds = time(NULL);
	struct tm tm;
	va_list arguments;
	FILE *log;

	(void)snprintf(path, sizeof(path), "%s/%s.log", dir, who);
	log = fopen(path, "ae");
	if (!log)
		return;
	(void)strftime(now, sizeof(now), "%Y-%m-%d %H:%M:%S", localtime_r(&seconds, &tm));
	fprintf(log, "[%s %s %d] ", now, who, (int)getpid());
	va_start(arguments, format);
	vfprintf(log, format, arguments);
	va_end(arguments);
	fputc('\n', log);
	fclose(log);
}
