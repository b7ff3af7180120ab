/* Prints the number of bytes that an HTTP server sends: fetch ADDRESS PATH. Static, since the guest has few libraries. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(80) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(80) };
	struct timeval limit = { .tv_sec = 8 };
	char buffer[65536];
	long sum = 0, count;
	int is_v4, fd, done;

	if (argc != 3)
		return 2;
	is_v4 = inet_pton(AF_INET, argv[1], &v4.sin_addr) == 1;
	if (!is_v4 && inet_pton(AF_INET6, argv[1], &v6.sin6_addr) != 1)
		return 2;
	fd = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM, 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	done = is_v4 ? connect(fd, (void *)&v4, sizeof(v4)) : connect(fd, (void *)&v6, sizeof(v6));
	if (done != 0) {
		perror("connect");
		return 1;
	}
	count = snprintf(buffer, sizeof(buffer), "GET %s HTTP/1.0\r\n\r\n", argv[2]);
	if (write(fd, buffer, count) != count)
		return 1;
	while ((count = read(fd, buffer, sizeof(buffer))) > 0)
		sum += count;
	printf("%ld\n", sum);
	return count != 0;
}
